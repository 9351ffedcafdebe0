# SPDX-License-Identifier: Apache-2.0
"""The entry point: upstream calls `register` in each of its processes.

Without hooks nothing else of this package is imported. It extends these functions of upstream, each of which is looked
up by name, so that a release without one of them is noticed at once:

| of upstream | why |
| --- | --- |
| ``EngineArgs.add_cli_args`` | the option ``--special-kwargs`` |
| ``EngineArgs.create_engine_config`` | hooks are checked where an engine is started, before its processes are |
| ``LLMEngine.__init__``, ``AsyncLLM.__init__`` | upstream makes the input and output processors there |
| ``AsyncLLM.generate`` | requests are refused before a server begins its answer; outlines are told as answers |
| ``DPLBAsyncMPClient.abort_requests_async`` | an abort of a child goes to the engine that has its request |
| ``CompletionOutput`` and ``RequestOutput`` of its output processor | outputs have room for a tree |
| ``WorkerWrapperBase.initialize_from_config`` | upstream makes its sampler before it; ours has to know more |
| the methods of the OpenAI server that make responses, and the lines of streams | choices carry their trees |
| the OpenAI server's list of models, and its check of a request's | the names that ask for an outline |
| ``AnthropicServingMessages.create_messages`` | fields that ask for an outline are refused there |
| ``OpenAIServingChatBatch.create_batch_chat_completion`` | chats that ask for outlines are answered one by one |
| ``load_endpoint_plugins`` | the routes of ``resume_sequence`` |

Upstream's entry point for routes is not used: it loads only what ``VLLM_PLUGINS`` names, and warns on every server that
finds one and has no such list, with hooks or not. The plug-in is of upstream's kind, and only its loader is extended.
"""

import functools
import sys
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

OPTION = "--special-kwargs"
_OURS = "_is_extended_by_sequence_hooks"


def register() -> None:
    """Extend upstream in this process, once."""
    # Front ends have imported the one, processes of workers the other.
    if "vllm.engine.arg_utils" in sys.modules:
        from vllm.engine.arg_utils import EngineArgs

        _extend(EngineArgs, "add_cli_args", _with_option)
        _extend(EngineArgs, "create_engine_config", _checked)
    if "vllm.v1.worker.worker_base" in sys.modules:
        _extend_workers()


def _with_option(upstream: Callable[..., Any], parser: Any) -> Any:
    parser = upstream(parser)
    from sequence_hooks.v1.settings import SpecialKwargsAction

    parser.add_argument(OPTION, action=SpecialKwargsAction)
    return parser


def _checked(upstream: Callable[..., Any], arguments: Any, usage_context: Any = None, *args: Any, **kwargs: Any) -> Any:
    scheduler, additional = arguments.scheduler_cls, arguments.additional_config
    is_ours = isinstance(scheduler, str) and scheduler.startswith("sequence_hooks.")
    if not is_ours and not (isinstance(additional, dict) and "special_kwargs" in additional):
        return upstream(arguments, usage_context, *args, **kwargs)
    from sequence_hooks.v1.stock import check_stock

    # Upstream starts processes of Python for it already.
    check_stock()
    config = upstream(arguments, usage_context, *args, **kwargs)
    if isinstance(additional, dict) and not config.cache_config.enable_prefix_caching:
        from sequence_hooks.v1.settings import with_private_caching

        # Upstream decides much by it, such as how layers with states keep them.
        config = upstream(with_private_caching(arguments, config), usage_context, *args, **kwargs)
    switch_on(config, usage_context)
    return config


def switch_on(config: Any, usage_context: Any = None) -> None:
    """Check the hooks of ``config``, an engine's whole configuration, and let engines of this process have them.

    Raises:
        ValueError: as in `checks.prepare`, or the release is unknown.
    """
    import vllm
    from sequence_hooks.v1.releases import check_release

    # Before all that an unknown release may not have.
    check_release(vllm.__version__)
    from sequence_hooks.v1.startup import prepare

    prepare(config, usage_context)
    _extend_front_ends()
    # The worker may run in this process.
    _extend_workers()


def _extend_workers() -> None:
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    _extend(WorkerWrapperBase, "initialize_from_config", _with_sampled_tokens)


def _with_sampled_tokens(upstream: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> None:
    upstream(wrapper, *args, **kwargs)
    additional = wrapper.vllm_config.additional_config
    if isinstance(additional, dict) and "special_kwargs" in additional:
        from sequence_hooks.v1.worker.attach import attach

        attach(wrapper.worker.model_runner)


def _extend_front_ends() -> None:
    """Let engines with hooks that are made from now on tell their callers of trees."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import DPLBAsyncMPClient
    from vllm.v1.engine.llm_engine import LLMEngine

    for engine in (LLMEngine, AsyncLLM):
        _extend(engine, "__init__", _with_processors)
    _extend(AsyncLLM, "generate", _checked_early)
    _extend(DPLBAsyncMPClient, "abort_requests_async", _with_children)


def _checked_early(
    upstream: Callable[..., Any],
    engine: Any,
    prompt: Any,
    sampling_params: Any,
    request_id: str,
    *args: Any,
    **kwargs: Any,
) -> Any:
    from sequence_hooks.serving.outlines.answer import OutlineAnswer
    from sequence_hooks.v1.frontend.input_processor import HookInputProcessor, engine_of

    if not isinstance(engine.input_processor, HookInputProcessor):
        return upstream(engine, prompt, sampling_params, request_id, *args, **kwargs)
    answer = OutlineAnswer.detach(sampling_params)
    if answer is not None:
        sampling_params = answer.params
    engine.input_processor.check_early(prompt, sampling_params, request_id)
    results = upstream(engine, prompt, sampling_params, request_id, *args, **kwargs)
    if answer is None:
        return results

    async def known() -> Any:
        return engine_of(engine.output_processor.tokenizer)

    return answer.read(results, known)


def _extend_server() -> None:
    """Let the OpenAI server of this process tell its clients of trees."""
    import vllm.plugins
    from sequence_hooks.v1.frontend import openai
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.batch_serving import OpenAIServingChatBatch
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
    from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens
    from vllm.entrypoints.serve.engine.serving import BaseServing

    _extend(OpenAIServingCompletion, "create_completion", openai.request_trees)
    _extend(OpenAIServingCompletion, "completion_stream_generator", openai.completion_stream)
    _extend(OpenAIServingCompletion, "request_output_to_completion_response", openai.completion_response)
    _extend(OpenAIServingChat, "create_chat_completion", openai.request_chat)
    _extend(OpenAIServingChat, "chat_completion_stream_generator", openai.chat_stream)
    _extend(OpenAIServingChat, "chat_completion_full_generator", openai.chat_response)
    _extend(ServingTokens, "serve_tokens_full_generator", openai.tokens_response)
    _extend(ServingTokens, "serve_tokens_stream_generator", openai.tokens_stream)
    _extend(OpenAIServingModels, "show_available_models", openai.list_models)
    _extend(BaseServing, "_check_model", openai.check_model)
    _extend(AnthropicServingMessages, "create_messages", openai.request_messages)
    _extend(OpenAIServingResponses, "create_responses", openai.request_response)
    _extend(OpenAIServingChatBatch, "create_batch_chat_completion", openai.request_batch)
    _extend(vllm.plugins, "load_endpoint_plugins", _with_routes)


def _with_routes(upstream: Callable[..., list[Any]], *args: Any, **kwargs: Any) -> list[Any]:
    from sequence_hooks.v1.routes import HookRoutes

    return [*upstream(*args, **kwargs), HookRoutes()]


def _with_processors(upstream: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> None:
    upstream(engine, *args, **kwargs)
    from sequence_hooks.v1.frontend.input_processor import HookInputProcessor
    from sequence_hooks.v1.frontend.output_processor import HookOutputProcessor
    from sequence_hooks.v1.frontend.stat_logger import HookStatLogger
    from sequence_hooks.v1.settings import special_kwargs_of
    from sequence_hooks.v1.startup import num_servers

    special_kwargs = special_kwargs_of(engine.vllm_config)
    if special_kwargs is not None:
        HookInputProcessor.install(engine.input_processor, special_kwargs)
        processor = HookOutputProcessor.install(engine.output_processor, special_kwargs)
        if engine.logger_manager is not None:
            loggers = engine.logger_manager
            loggers.stat_loggers.append(
                HookStatLogger(
                    engine.vllm_config, loggers.engine_indexes, processor, logs=num_servers(engine.vllm_config) == 1
                )
            )
        # A process that only generates has not imported the server.
        if "vllm.entrypoints.openai" in sys.modules:
            _extend_server()


async def _with_children(upstream: Callable[..., Awaitable[None]], client: Any, request_ids: list[str]) -> None:
    from sequence_hooks.tree.ids import root_id

    await upstream(client, request_ids)
    # Upstream knows which engine has a request, and nothing of children.
    for request_id in request_ids:
        engine = client.reqs_in_flight.get(root_id(request_id))
        if engine is not None and request_id not in client.reqs_in_flight and not client.resources.engine_dead:
            await client._abort_requests([request_id], engine)


def _extend(owner: type | ModuleType, name: str, extension: Callable[..., Any]) -> None:
    """Replace a function of upstream's by ``extension``, which gets the original one as its first argument."""
    given = owner.__dict__[name]
    upstream = given.__func__ if isinstance(given, staticmethod) else given
    if hasattr(upstream, _OURS):
        return

    @functools.wraps(upstream)
    def extended(*args: Any, **kwargs: Any) -> Any:
        return extension(upstream, *args, **kwargs)

    setattr(extended, _OURS, True)
    setattr(owner, name, staticmethod(extended) if isinstance(given, staticmethod) else extended)
