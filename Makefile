# The verbs of this repository; `make help` lists them. Each does all the set-up that it needs.
#
# PYTHON        the interpreter to build on: 3.10, 3.11 or 3.12, and for the plug-in 3.11, 3.12 or 3.13
# VENV          the virtual environment
# TORCH_INDEX   an extra package index that has CPU builds of torch, where pip's own sources have none
# FUZZ_SECONDS, FUZZ_SEED   how long `make fuzz` and `make fuzz-plugin` try histories, and which
# WORKERS       how many processes each chain of tests has beside its own; by default 0, as two chains fill two cores
# FULL=1        runs those tests too that are marked "full", which `make test-all` does
# COVERAGE=1    demands that the fork's tests without a model cover every line and branch, as .ci/run does
# PAGES=1       runs the tests of pages beside `make checks`, in a Chromium that `make browser` has found
# DEVICE_PYTHON an interpreter with a vLLM for this machine's accelerator and the plug-in, for `make test-device`
# TURNS_SECONDS how long `make turns` may take, of what `make test-all` has more than `make test`
# RELEASES      the releases that `make test-releases` tests the plug-in on, such as 0.30.0; by default all
# VLLM_TARGET_DEVICE=cpu|cuda   what upstream is built for; here the CPU where it isn't set

VENV ?= .venv
CANDIDATES := python3.11 python3.12 python3.10 python3.13 python3
# What any Python must be that chooses among them.
RUNS := import sys; sys.exit(sys.version_info < (3, 7))
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UPSTREAM := vllm/_upstream/.build-key
# They run tests, and change nothing that is set up.
NO_INPUTS := requirements/%plugin.txt $(patsubst %,build_tools/%.py,device durations ledger mutants parts paths rest turns)
INPUTS := $(filter-out $(NO_INPUTS),$(wildcard requirements/*.txt build_tools/*.py)) setup.py pyproject.toml
INSTALL = $(BIN)/python -m build_tools.pip_install --constraint requirements/constraints-$(VLLM_TARGET_DEVICE).txt

PLUGIN := .venv-plugin
PLUGIN_READY := $(PLUGIN)/.ready
# The plug-in's tests and tools run here: beside the fork's vllm/ a stock one could not be imported.
PLUGIN_PATH := $(CURDIR)/build/plugin:$(CURDIR)/build/plugin/examples
IN_PLUGIN = cd build/plugin && PYTHONSAFEPATH=1 PYTHONPATH=$(PLUGIN_PATH)
# Here mutmut changes the plug-in; one thread, because it forks the process that has run the tests once.
MUTANTS := build/mutants-plugin
IN_MUTANTS = cd $(MUTANTS) && PYTHONSAFEPATH=1 OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/$(MUTANTS)/mutants:$(CURDIR)/$(MUTANTS)/mutants/examples
# The same with another release of vLLM, $(1), which has its own cache of what it knows of models.
on_release = cd build/plugin && PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/releases/$(1):$(PLUGIN_PATH) \
  VLLM_CACHE_ROOT=$(CURDIR)/build/releases/$(1)/.cache RELEASE_UNDER_TEST=$(1)

# The command that runs the module $(1), with its arguments, by the first Python that runs at all.
define with_any_python
for any in $(CANDIDATES) $(PYTHON); do \
  if $$any -c '$(RUNS)' 2>/dev/null; then exec $$any -m $(1); fi; \
done; \
echo "error: none of these runs: $(CANDIDATES) $(PYTHON); install Python 3.11, or set PYTHON=/path/to/python3.11" >&2; exit 1
endef
# The command that makes the virtual environment $(1) for $(2) with the first Python that can be built on.
create = $(call with_any_python,build_tools.start '$(1)' $(CANDIDATES) --for $(2) --python '$(PYTHON)')

FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 0

export VLLM_TARGET_DEVICE ?= cpu
export VLLM_NO_USAGE_STATS ?= 1
# Packages are installed without it: where this is set, as in many images, each process would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup plugin demo demo-plugin language-model gemma-check agreement lint check-core lock mutate mutate-plugin check-upstream bench \
  bench-quick bench-pressure bench-agreement fuzz train trace-demo trace-picture browser clean fuzz-plugin bench-plugin \
  bench-plugin-quick bench-language bench-plugin-overhead bench-fairness fuzz-injection dist docs language-data \
  train-language merge-language demo-language score-language agreement-language language-pictures

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(READY) $(UPSTREAM) ## virtual environment, dependencies, upstream, build
	@:

$(READY): $(INPUTS)
	@echo "== virtual environment $(VENV): set-up takes some six minutes on two cores where nothing is cached"
	@$(call create,$(VENV),fork)
	@$(INSTALL) --upgrade -r requirements/build.txt
	@$(BIN)/python -m build_tools.preflight
	@echo "== PyTorch"
	@$(BIN)/python -m build_tools.install_torch --index '$(TORCH_INDEX)'
	@echo "== dependencies"
	@$(INSTALL) -r requirements/common.txt -r requirements/$(VLLM_TARGET_DEVICE).txt -r requirements/dev.txt
	@echo "== upstream"
	@$(BIN)/python -m build_tools
	@echo "== this package"
	@$(INSTALL) --no-build-isolation --no-deps --editable .
	@touch $@

# A tree that went missing is put back, though nothing that it is made from has changed.
$(UPSTREAM): | $(READY)
	@$(BIN)/python -m build_tools

plugin: $(PLUGIN_READY) ## an environment with a stock, current vLLM and the plug-in
	@:

$(PLUGIN_READY): requirements/constraints-plugin.txt requirements/notebook-plugin.txt build_tools/plugin.py sequence_hooks/pyproject.toml
	@echo "== virtual environment $(PLUGIN): set-up takes some five minutes where nothing is cached"
	@$(call create,$(PLUGIN),plugin)
	@$(PLUGIN)/bin/python -m build_tools.pip_install --constraint requirements/constraints-cpu.txt -r requirements/build.txt
	@echo "== PyTorch"
	@VLLM_TARGET_DEVICE=cpu $(PLUGIN)/bin/python -m build_tools.install_torch --index '$(TORCH_INDEX)'
	@echo "== a stock vLLM"
	@$(PLUGIN)/bin/python -m build_tools.pip_install --no-deps -r requirements/constraints-plugin.txt \
	  -r requirements/notebook-plugin.txt
	@echo "== the plug-in"
	@$(PLUGIN)/bin/python -m build_tools.pip_install --no-build-isolation --no-deps --editable sequence_hooks
	@$(PLUGIN)/bin/python -m build_tools.plugin
	@touch $@

demo: setup ## forks and joins of a tiny model on a real engine
	@$(BIN)/python examples/demo.py

demo-plugin: plugin ## the same on a stock, current vLLM with the plug-in: in process, and over the server
	@$(IN_PLUGIN) $(CURDIR)/$(PLUGIN)/bin/python -W ignore examples/demo.py
	@$(IN_PLUGIN) $(CURDIR)/$(PLUGIN)/bin/python -W ignore examples/demo_served.py

language-model: plugin ## a real chat model, SmolLM2-135M-Instruct, in the user's cache: 93 MB are fetched, once
	@$(PLUGIN)/bin/python -m build_tools.language_model

gemma-check: plugin ## windows on real weights: the self-check on Gemma 3 270M; to run it is to agree to ai.google.dev/gemma/terms
	@model=$$($(PLUGIN)/bin/python -m build_tools.language_model gemma3 | tail -n 1); test -d "$$model" || exit 1; $(IN_PLUGIN) \
	  $(CURDIR)/$(PLUGIN)/bin/python -m sequence_hooks.selfcheck "$$model" --dtype float32 --max-model-len 2048 \
	  --gpu-memory-utilization 0.5

# The base model's folder, which is made where it is not there.
BASE_MODEL = $$($(CURDIR)/$(PLUGIN)/bin/python -m build_tools.language_model | tail -n 1)
LANGUAGE := $(CURDIR)/build/language
TRAINER := $(CURDIR)/build/trainer
ADAPTER ?= $(CURDIR)/examples/forkjoin-language/adapter
WITH_BASE = @base=$(BASE_MODEL); test -d "$$base" || exit 1; mkdir -p $(LANGUAGE); $(IN_PLUGIN)

$(LANGUAGE)/answers.jsonl: examples/forkjoin-language/questions/train.txt | $(PLUGIN_READY)
	$(WITH_BASE) $(CURDIR)/$(PLUGIN)/bin/python -W ignore examples/language_data.py $$base $@.part
	@mv $@.part $@

$(TRAINER): requirements/language-trainer.txt | $(PLUGIN_READY)
	@$(PLUGIN)/bin/python -m build_tools.pip_install --no-deps --upgrade --target $@ -r $<
	@touch $@

language-data: $(LANGUAGE)/answers.jsonl ## trees to train a real language model on, of the base model's own words
	@:

train-language: $(LANGUAGE)/answers.jsonl $(TRAINER) ## an adapter with which SmolLM2-135M-Instruct forks and joins, in build/language/adapter
	$(WITH_BASE):$(TRAINER) $(CURDIR)/$(PLUGIN)/bin/python -W ignore examples/train_language.py $$base $(LANGUAGE)/answers.jsonl \
	  $(LANGUAGE)/adapter $(TRAIN)

merge-language: $(LANGUAGE)/model/config.json ## the base model with ADAPTER merged into it, in build/language/model
	@:

$(LANGUAGE)/model/config.json: $(ADAPTER)/adapter_model.safetensors build_tools/language_model.py | $(PLUGIN_READY)
	$(WITH_BASE) $(CURDIR)/$(PLUGIN)/bin/python -W ignore examples/merge_language.py $$base $(LANGUAGE)/model --adapter $(ADAPTER)
	@touch $@

demo-language: merge-language ## a real language model forks and joins: three questions, their trees, and their times
	@$(IN_PLUGIN) $(CURDIR)/$(PLUGIN)/bin/python -W ignore examples/demo_language.py $(LANGUAGE)/model

score-language: merge-language ## the language model on 200 held-out questions, beside its base
	$(WITH_BASE) $(CURDIR)/$(PLUGIN)/bin/python -W ignore examples/measure_language.py $$base $(LANGUAGE)/model --page $(LANGUAGE)/score.md

agreement: setup plugin ## the fork's and the plug-in's trees, token for token, on 500 prompts for each way to merge
	@$(BIN)/python -W ignore examples/agreement.py answer $(CURDIR)/build/agreement/fork.json
	@$(IN_PLUGIN) $(CURDIR)/$(PLUGIN)/bin/python -W ignore examples/agreement.py answer $(CURDIR)/build/agreement/plugin.json
	@$(BIN)/python -W ignore examples/agreement.py compare build/agreement/fork.json build/agreement/plugin.json

agreement-language: setup merge-language ## the same on 50 of the language model's trees; a tie in its logits may part them
	@$(BIN)/python -W ignore examples/agreement.py answer $(CURDIR)/build/agreement/language-fork.json --language $(LANGUAGE)/model --count 50
	@$(IN_PLUGIN) $(CURDIR)/$(PLUGIN)/bin/python -W ignore examples/agreement.py answer \
	  $(CURDIR)/build/agreement/language-plugin.json --language $(LANGUAGE)/model --count 50
	@$(BIN)/python -W ignore examples/agreement.py compare build/agreement/language-fork.json build/agreement/language-plugin.json

include build_tools/tests.mk

lint: setup plugin ## ruff and mypy on our code
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(IN_PLUGIN) MYPYPATH=examples $(CURDIR)/$(BIN)/mypy --config-file sequence_hooks/pyproject.toml --python-executable $(CURDIR)/$(PLUGIN)/bin/python -p sequence_hooks.v1 -p mytests.v1 -p mytests.harness.v1

check-core: setup ## sequence_hooks alone: types, imports, and its wheel and tests, but the walks, in an environment without torch and vLLM
	@$(BIN)/mypy --strict sequence_hooks
	@$(BIN)/lint-imports
	@$(BIN)/python -m build_tools.check_core .venv-core

dist: setup plugin ## wheels and sdists of both distributions in dist/, each checked where nothing else is installed
	@$(BIN)/python -m build_tools.dist $(CURDIR)/$(PLUGIN)/bin/python

docs: setup ## the documentation as a site, with the API reference; a link that leads nowhere is an error
	@$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet --fresh-env \
	  --conf-dir docs --doctree-dir build/doctrees . build/docs
	@echo build/docs/index.html

lock: setup ## renew requirements/constraints-*.txt
	@for target in cpu cuda; do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --upgrade --no-header --no-annotate \
	    requirements/common.txt requirements/$$target.txt requirements/build.txt requirements/dev.txt \
	    --output-file requirements/constraints-$$target.txt || exit 1; \
	done

mutate: setup ## mutation score of the modules that hold the rules, or of MODULE='sequence_hooks.tree.injection_plan.*'
	@$(if $(MODULE),,rm -rf mutants)
	@$(BIN)/mutmut run $(if $(MODULE),'$(MODULE)')
	@$(BIN)/mutmut results | tee build/mutants-fork.txt

mutate-plugin: plugin ## the same of the plug-in's scheduler and workers, such as MODULE='sequence_hooks.v1.core.kept.*'
	@$(PLUGIN)/bin/python -m build_tools.pip_install --no-deps -r requirements/mutants-plugin.txt
	@$(if $(MODULE),,rm -rf $(MUTANTS))
	@$(PLUGIN)/bin/python -m build_tools.mutants
	@$(IN_MUTANTS) $(CURDIR)/$(PLUGIN)/bin/python -m mutmut run $(if $(MODULE),'$(MODULE)')
	@$(IN_MUTANTS) $(CURDIR)/$(PLUGIN)/bin/python -m mutmut results | tee $(CURDIR)/build/mutants-plugin.txt

check-upstream: setup ## the same tokens and logprobs as pristine upstream
	@$(BIN)/python -m benchmarks.check_upstream

bench: setup ## every way to do the same work, side by side: docs/figures/benchmarks.md; some 90 minutes at rest
	@$(BIN)/python -W ignore -m benchmarks.forkjoin

bench-quick: setup ## a subset of it in less than five minutes: build/bench-quick/benchmarks.md
	@$(BIN)/python -W ignore -m benchmarks.forkjoin --quick --output build/bench-quick

bench-pressure: setup ## throughput with less KV than the load asks for, by policy and with hooks off
	@$(BIN)/python -W ignore -m benchmarks.bench_pressure

bench-agreement: setup ## kv_inject against a prefill of the same tokens
	@$(BIN)/python -W ignore -m benchmarks.inject_agreement

bench-plugin-overhead: plugin ## steps of a stock vLLM with the plug-in and no hook token, against those without
	@$(IN_PLUGIN) $(CURDIR)/$(PLUGIN)/bin/python -W ignore -m benchmarks.plugin_overhead

bench-fairness: setup plugin ## an ordinary request beside one that spawns as much as it can, on both engines
	@VLLM_LOGGING_LEVEL=ERROR $(BIN)/python -W ignore -m benchmarks.bench_fairness
	@$(IN_PLUGIN) $(CURDIR)/$(PLUGIN)/bin/python -W ignore -m benchmarks.bench_fairness

bench-plugin: setup plugin ## hooks on a stock vLLM against a client, decoding in sequence, and the fork: build/bench-plugin
	@$(BIN)/python -W ignore -m benchmarks.plugin_forkjoin --plugin $(CURDIR)/$(PLUGIN)/bin/python

bench-language: merge-language ## a real model's outlines and trees against a client and answers in sequence; BENCH='--questions 3' for less
	$(WITH_BASE) $(CURDIR)/$(PLUGIN)/bin/python -W ignore -m benchmarks.language $$base --trained $(LANGUAGE)/model \
	  --output $(CURDIR)/build/bench-language $(BENCH)

bench-plugin-quick: setup plugin ## a subset of it in less than five minutes
	@$(BIN)/python -W ignore -m benchmarks.plugin_forkjoin --quick --plugin $(CURDIR)/$(PLUGIN)/bin/python

fuzz: setup ## random histories on a real engine, against transformers
	@VLLM_LOGGING_LEVEL=ERROR $(BIN)/python -W ignore -m mytests.fuzz --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

fuzz-injection: setup plugin ## random histories of injected KV on both engines, against transformers
	@VLLM_LOGGING_LEVEL=ERROR $(BIN)/python -W ignore -m mytests.fuzz --injected --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)
	@VLLM_LOGGING_LEVEL=ERROR $(IN_PLUGIN) $(CURDIR)/$(PLUGIN)/bin/python -W ignore -m mytests.fuzz --injected --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

fuzz-plugin: plugin ## the same on a stock, current vLLM with the plug-in
	@$(IN_PLUGIN) VLLM_LOGGING_LEVEL=ERROR TORCH_CPP_LOG_LEVEL=ERROR $(CURDIR)/$(PLUGIN)/bin/python -W ignore -m mytests.fuzz \
	  --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

train: setup ## train examples/forkjoin-tiny anew
	@$(BIN)/python examples/train_forkjoin.py

trace-demo: setup ## record a run of the tiny model, and make pictures of it in build/trace
	@$(BIN)/python examples/record_run.py build/trace/run.jsonl
	@$(BIN)/python -m sequence_hooks.trace build/trace/run.jsonl

trace-picture: trace-demo browser ## renew docs/images/trace.png, and trace-big.png of 98 requests
	@$(BIN)/python -m mytests.harness.trace_picture build/trace/run.html docs/images/trace.png 18 0.35
	@$(BIN)/python examples/record_run.py build/trace/big.jsonl --requests 98 --at-once 14 --pause 0.2
	@$(BIN)/python -m sequence_hooks.trace build/trace/big.jsonl
	@$(BIN)/python -m mytests.harness.trace_picture build/trace/big.html docs/images/trace-big.png

language-pictures: merge-language browser ## renew docs/images/live.gif and language.png, of trees of the language model
	@$(IN_PLUGIN) $(CURDIR)/$(PLUGIN)/bin/python -m mytests.harness.live_picture $(CURDIR)/docs/images/live.gif $(LANGUAGE)/model
	@$(IN_PLUGIN) $(CURDIR)/$(PLUGIN)/bin/python -W ignore examples/demo_language.py $(LANGUAGE)/model --record $(LANGUAGE)/run.jsonl
	@$(BIN)/python -m sequence_hooks.trace $(LANGUAGE)/run.jsonl
	@$(BIN)/python -m mytests.harness.trace_picture $(LANGUAGE)/run.html docs/images/language.png 4 0.25

browser: setup ## a Chromium for the tests of the trace page, where there is none
	@$(BIN)/python -m mytests.harness.browser || \
	  { apt-get update -qq -o Acquire::Retries=0 && apt-get install -qq --no-install-recommends chromium; } || \
	  $(BIN)/playwright install --with-deps chromium

clean: ## remove the virtual environment and what was built here; the user's cache stays
	@rm -rf $(VENV) $(PLUGIN) .venv-core .venv-upstream build mutants *.egg-info vllm/_upstream
