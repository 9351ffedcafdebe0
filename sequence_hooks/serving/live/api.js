"use strict";

// Calls of the server's routes, with the API key if one was asked for.

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const api = {
  key: sessionStorage.getItem("key") ?? "",

  async send(path, body, options = {}) {
    const headers = { ...options.headers };
    if (api.key) headers.Authorization = `Bearer ${api.key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const method = body === undefined ? "GET" : "POST";
    const answer = await fetch(path, { ...options, method, headers, body: JSON.stringify(body) });
    if (!answer.ok) throw new Refused(answer.status, await api.reason(answer));
    return answer;
  },

  async json(path, body) {
    return (await api.send(path, body)).json();
  },

  async reason(answer) {
    const text = await answer.text();
    try {
      const told = JSON.parse(text);
      return told.error?.message ?? told.detail ?? told.error ?? text;
    } catch {
      return text || `the server answered ${answer.status}`;
    }
  },

  // The chunks of a stream.
  async *chunks(path, body, options) {
    const answer = await api.send(path, body, options);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let read = await reader.read(); !read.done; read = await reader.read()) {
      const lines = (rest + read.value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
      }
    }
  },

  use(key) {
    api.key = key;
    sessionStorage.setItem("key", key);
  },
};

// Sums of metrics by their names without labels. Both engines have the same names, but one.
function readMetrics(text) {
  const sums = new Map();
  for (const line of text.split("\n")) {
    const found = /^vllm:(\w+)(?:\{.*\})? (\S+)$/.exec(line);
    if (found) sums.set(found[1], (sums.get(found[1]) ?? 0) + Number(found[2]));
  }
  const of = (...names) => names.map((name) => sums.get(name)).find((sum) => sum !== undefined);
  return {
    tokens: of("generation_tokens_total"),
    running: of("num_requests_running"),
    waiting: of("num_requests_waiting"),
    blocked: of("num_requests_blocked"),
    kv: of("kv_cache_usage_perc", "gpu_cache_usage_perc"),
  };
}
