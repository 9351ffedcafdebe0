# The verbs of this repository; each does all the set-up that it needs, and `make help` lists the main ones. A name with
# "=" is a verb, too: what it stands for are environments of tox (tox.ini), or arguments of the fork's or the plug-in's
# Python, to which ARGS are added. docs/internals/setup.md explains PYTHON, TORCH_INDEX and VLLM_TARGET_DEVICE.

export VLLM_TARGET_DEVICE ?= cpu
export VLLM_NO_USAGE_STATS ?= 1
# Where this is set, as in many images, each process would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

FORK = $(CURDIR)/.venv/bin/python -W ignore
PLUGIN_PYTHON := $(CURDIR)/.venv-plugin/bin/python
# The plug-in's tests and tools run here: beside the fork's vllm/ a stock one could not be imported.
IN_PLUGIN = cd build/plugin && PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/plugin:$(CURDIR)/build/plugin/examples
PLUGIN = $(IN_PLUGIN) $(PLUGIN_PYTHON) -W ignore
QUIET = VLLM_LOGGING_LEVEL=ERROR TORCH_CPP_LOG_LEVEL=ERROR
UPSTREAM := vllm/_upstream/.build-key
MODULES := archive cache commands compiler extension fetch processor recipe release sources tree

.DEFAULT_GOAL := help
help: ## this list
	@sed -n 's/^\([a-z][a-z-]*\)[^:=]*[:=].*## /\1\t/p' Makefile | expand -t 16

setup: .venv/.ready $(UPSTREAM) ## the fork's environment, .venv: dependencies, upstream's release and its kernels

.venv/.ready: build_tools/setup.sh $(MODULES:%=build_tools/%.py) requirements/lock-fork.txt setup.py pyproject.toml
	@sh build_tools/setup.sh fork .venv

# A tree that went missing is put back, though nothing that it is made from has changed.
$(UPSTREAM): | .venv/.ready
	@.venv/bin/python -m build_tools

plugin: .venv-plugin/.ready ## the plug-in's environment, .venv-plugin, with a stock vLLM

.venv-plugin/.ready: build_tools/setup.sh build_tools/plugin.py requirements/lock-plugin.txt sequence_hooks/pyproject.toml
	@sh build_tools/setup.sh plugin .venv-plugin

demo: setup ## forks and joins of a tiny model on a real engine
	@.venv/bin/python examples/demo.py

demo-plugin: plugin ## the same on a stock, current vLLM with the plug-in: in process, and over the server
	@$(PLUGIN) examples/demo.py
	@$(PLUGIN) examples/demo_served.py

# Runs of several parts, the longest first, two at a time; one that fails hides no other, and the last line names it.
RELEASES := $(shell sed -n 's/^    \(.*\): RELEASE_UNDER_TEST.*/\1/p' tox.ini)
PATHS := first-asynchronous second-synchronous second-asynchronous
SETS := avx512 avx2 sse41
CHECKS := lint check-core docs fork-browser plugin-browser
test = plugin-tests plugin-apart fork-surgical fork-apart fork-model ## the tests of the fork and of the plug-in, side by side
test-fork = $(filter fork-%,$(test))
test-plugin = $(filter plugin-%,$(test))
test-releases = $(foreach one,$(RELEASES),plugin-release-$(one) plugin-release-$(one)-second-asynchronous)
test-paths = $(PATHS:%=plugin-path-%) $(PATHS:%=plugin-path-%-fuzzer)
test-floats = $(foreach set,$(SETS) $(SETS:=-full),fork-floats-$(set) plugin-floats-$(set))
test-browser = fork-browser plugin-browser
test-all = $(test) $(CHECKS) fork-full plugin-full $(RARE) bench-quick bench-plugin-quick ## all, for hours: test-releases, test-paths, test-floats, test-browser …
ci = $(TURNS) $(test) $(CHECKS) fork-full plugin-full ## what .ci/run runs: test, checks, and a part of test-all in turn
RARE = $(test-releases) $(test-paths) $(test-floats) fuzz fuzz-plugin fuzz-injection dist demo-language bench-device-tiny

# The commit decides whose turn it is, and what has changed within a day.
NUMBER := $(shell printf %d 0x0$$(git rev-parse --short=7 HEAD 2>/dev/null))
turn_of = $(word $(shell expr $(NUMBER) % $(words $(1)) + 1),$(1))
if_changed = $(if $(shell git log --since '1 day' --format=%h -- sequence_hooks/v1/$(1)),$(call turn_of,$(2)))
TURNS = $(call turn_of,$(RARE)) $(call if_changed,releases,$(test-releases)) $(call if_changed,worker,$(test-paths))
ci: export SPLIT = --splitting-algorithm least_duration --splits 24 --group $(shell expr $(NUMBER) % 24 + 1)
ci: export THIRD = --splitting-algorithm least_duration --splits 3 --group $(shell expr $(NUMBER) / 100 % 3 + 1)
ci test-all: export COVERAGE = --cov
test-all: export FUZZ_SECONDS = 600
test test-fork test-plugin test-releases test-paths test-floats test-browser test-all ci:
	@sh build_tools/run.sh $@ $($@)

DEVICE_PYTHON ?= python3
bench-device test-device: ## on an accelerator, for which DEVICE_PYTHON has a vLLM and the plug-in: speed, and tests
	@$(DEVICE_PYTHON) -m build_tools.device $@ $(ARGS)

lint: setup plugin ## ruff and mypy on our code
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@$(IN_PLUGIN) MYPYPATH=examples $(CURDIR)/.venv/bin/mypy --config-file sequence_hooks/pyproject.toml \
	  --python-executable $(PLUGIN_PYTHON) -p sequence_hooks.v1 -p mytests.v1 -p mytests.harness.v1

check-core: setup ## sequence_hooks alone: types, imports, its wheel, and its tests where neither torch nor vLLM is
	@.venv/bin/mypy --strict sequence_hooks
	@.venv/bin/lint-imports
	@.venv/bin/python -m build_tools.check_core .venv-core

docs: setup ## the documentation as a site in build/docs; a link that leads nowhere is an error
	@.venv/bin/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet --fresh-env \
	  --conf-dir docs --doctree-dir build/doctrees . build/docs

dist: setup plugin ## wheels and sdists of both distributions in dist/, each tried where nothing else is installed
	@.venv/bin/python -m build_tools.dist $(PLUGIN_PYTHON)

browser: setup
	@.venv/bin/python -m mytests.harness.browser || \
	  { apt-get update -qq -o Acquire::Retries=0 && apt-get install -qq --no-install-recommends chromium; } || \
	  .venv/bin/playwright install --with-deps chromium

FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 0
fuzz = -m mytests.fuzz --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED) ## random histories; fuzz-plugin, fuzz-injection
fuzz-plugin = $(fuzz)
fuzz-injection = $(fuzz) --injected
bench = -m benchmarks.forkjoin ## every way to do the same work, side by side: 90 minutes at rest
bench-quick = -m benchmarks.forkjoin --quick --output build/bench-quick
bench-pressure = -m benchmarks.bench_pressure
bench-agreement = -m benchmarks.inject_agreement
bench-plugin = -m benchmarks.plugin_forkjoin --plugin $(PLUGIN_PYTHON)
bench-plugin-quick = $(bench-plugin) --quick
bench-plugin-overhead = -m benchmarks.plugin_overhead
bench-device-tiny = -m benchmarks.device --tiny
device-bundle = -m benchmarks.device.bundle
bench-fairness = -m benchmarks.bench_fairness
bench-speculation = -m benchmarks.speculation --language $(LANGUAGE)/model
check-upstream = -m benchmarks.check_upstream
rl = examples/rl_on_trees.py ## a tiny model learns from its trees, ten times; rl-trl, and rl-language, by its adapter
train = examples/train_forkjoin.py
fuzz bench-quick bench-pressure bench-agreement bench-plugin bench-plugin-quick check-upstream device-bundle train:
	@$(QUIET) $(FORK) $($@) $(ARGS)

fuzz-plugin bench-plugin-overhead bench-device-tiny bench-speculation rl: plugin
	@export $(QUIET); $(PLUGIN) $($@) $(ARGS)

fuzz-injection bench-fairness: setup plugin
	@$(QUIET) $(FORK) $($@) $(ARGS)
	@export $(QUIET); $(PLUGIN) $($@) $(ARGS)

mutate mutate-plugin rl-trl: setup plugin ## a mutation score, or that of ARGS='sequence_hooks.tree.rules.*'
	@.venv/bin/tox -q -e $@ -- $(ARGS)

# A real language model, and one that is trained to fork and join.
LANGUAGE := $(CURDIR)/build/language
ADAPTER ?= $(CURDIR)/examples/forkjoin-language/adapter
BASE := $(LANGUAGE)/smollm2

language-model: plugin ## a real language model, SmolLM2-135M-Instruct, in build/language/smollm2
	@$(PLUGIN_PYTHON) -m build_tools.language_model

$(LANGUAGE)/answers.jsonl: examples/forkjoin-language/questions/train.txt | language-model
	@$(PLUGIN) examples/language_data.py $(BASE) $@.part
	@mv $@.part $@

$(LANGUAGE)/model/config.json: $(ADAPTER)/adapter_model.safetensors build_tools/language_model.py | language-model
	@$(PLUGIN) examples/merge_language.py $(BASE) $(LANGUAGE)/model --adapter $(ADAPTER)
	@touch $@

language-data: $(LANGUAGE)/answers.jsonl
merge-language: $(LANGUAGE)/model/config.json

build/trainer/.ready: requirements/language-trainer.txt | .venv-plugin/.ready
	@$(PLUGIN_PYTHON) -m pip install --quiet --no-deps --upgrade --target build/trainer -r $<
	@touch $@

demo-language: merge-language ## a real language model forks and joins: three questions, their trees, and their times
	@$(PLUGIN) examples/demo_language.py $(LANGUAGE)/model $(ARGS)

train-language = examples/train_language.py $(BASE) $(LANGUAGE)/answers.jsonl $(LANGUAGE)/adapter
score-language = examples/measure_language.py $(BASE) $(LANGUAGE)/model --page $(LANGUAGE)/score.md
bench-language = -m benchmarks.language $(BASE) --trained $(LANGUAGE)/model --output $(CURDIR)/build/bench-language
rl-language = examples/rl_on_language.py $(BASE) $(LANGUAGE)/model
train-language: $(LANGUAGE)/answers.jsonl
train-language rl-language: build/trainer/.ready
score-language bench-language rl-language bench-speculation agreement-language: merge-language
train-language score-language bench-language rl-language:
	@$(IN_PLUGIN):$(CURDIR)/build/trainer $(PLUGIN_PYTHON) -W ignore $($@) $(ARGS)

agreement-language: ARGS = --language $(LANGUAGE)/model --count 50
agreement agreement-language: setup plugin
	@$(FORK) examples/agreement.py answer $(CURDIR)/build/agreement/$@-fork.json $(ARGS)
	@$(PLUGIN) examples/agreement.py answer $(CURDIR)/build/agreement/$@-plugin.json $(ARGS)
	@$(FORK) examples/agreement.py compare build/agreement/$@-fork.json build/agreement/$@-plugin.json

trace-demo: setup
	@$(FORK) examples/record_run.py build/trace/run.jsonl
	@$(FORK) -m sequence_hooks.trace build/trace/run.jsonl

clean:
	@rm -rf .venv .venv-plugin .venv-core .venv-upstream .tox build mutants *.egg-info vllm/_upstream
