# SPDX-License-Identifier: Apache-2.0
# The targets that run tests. The Makefile includes this, and says what the variables are for.

# With workers, files of tests run side by side: most use one core. What must be alone, and why, is in TODO.md.
WORKERS ?= 0
SPREAD = -n $(WORKERS) --dist loadfile
ALONE := mytests/fuzz/test_fuzz.py
# Of the fork's tests, those that the plug-in's chain can take over when it ends first.
APART := mytests/server mytests/training mytests/models
# Of all tests, those that any machine can run in some minutes.
SELECTED = not browser and not device$(if $(filter-out 0,$(FULL)),, and not full)
OTHERS = $(addprefix --ignore ,$(ALONE) $(APART))
FORK_PARTS = $(if $(filter-out 0,$(COVERAGE)),fork-surgical fork-model,fork-tests)
EITHER := fork-apart fork-alone
CHAINS = --chain fork setup! $(FORK_PARTS) --chain plugin plugin! plugin-tests --either $(EITHER)
ON_PLUGIN := $(addprefix mytests/,rules models server v1 fuzz training)

if_pages = $(if $(filter-out 0,$(PAGES)),$(1))
TURNS_SECONDS ?= 420
DEVICE_PYTHON ?= python3

# The command of the target X-parts: runs parts, and leaves it to the target X to fail with a line that names them.
parts = $(call leaving_failures,build_tools.parts $(@:-parts=) $(1))
leaving_failures = ($(call with_any_python,$(1))) || test -s build/durations/$(@:-parts=).failed
OF_PARTS := test test-fork test-plugin test-releases test-paths test-floats test-browser test-device test-all checks ci turns
# PyTorch's compiler would find code for another instruction set in its cache, and fail to compile it for this one.
floats_in = TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/build/inductor-$(1) ONEDNN_MAX_CPU_ISA=$(2)
FLOATS ?= floats
FLOATS_avx512 := $(call floats_in,avx512,AVX512_CORE)
FLOATS_avx2 := $(call floats_in,avx2,AVX2) ATEN_CPU_CAPABILITY=avx2
FLOATS_sse41 := $(call floats_in,sse41,SSE41) ATEN_CPU_CAPABILITY=default

# The paths of a GPU: upstream's model runner, and how it schedules. The other tests take the CPU's, first-synchronous.
PATHS := first-asynchronous second-synchronous second-asynchronous
runner_of = $(firstword $(subst -, ,$(1)))
OF_SECOND_RUNNER := VLLM_USE_V2_MODEL_RUNNER=1 TRITON_INTERPRET=1
on_path = $(IN_PLUGIN):$(CURDIR)/build/paths/$(call runner_of,$(1)) PATH_UNDER_TEST=$(1) VLLM_LOGGING_LEVEL=ERROR \
  TORCH_CPP_LOG_LEVEL=ERROR $(if $(filter second-%,$(1)),$(OF_SECOND_RUNNER))

.PHONY: $(OF_PARTS) $(OF_PARTS:=-parts) durations device device-selfcheck device-tests fork-tests fork-surgical \
  fork-model fork-apart fork-alone fork-full fork-browser plugin-tests plugin-full plugin-browser

test: test-parts ## all tests that any machine can run in some minutes: both set-ups, and of both vLLMs side by side

test-parts:
	@$(call parts,$(CHAINS))

test-fork: test-fork-parts ## of those the fork's

test-fork-parts:
	@$(call parts,--then setup! $(FORK_PARTS) $(EITHER))

test-plugin: test-plugin-parts ## of those the plug-in's, on a stock vLLM

test-plugin-parts:
	@$(call parts,--then plugin! plugin-tests)

test-releases: test-releases-parts ## the plug-in's tests that depend on vLLM's release, on the other releases that it supports

test-releases-parts: plugin
	@releases=$$($(PLUGIN)/bin/python -m build_tools.releases --list $(RELEASES)) || exit 1; \
	$(call parts,--then $$(printf 'release-%s ' $$releases))

test-paths: test-paths-parts ## the plug-in with a model on the paths that a GPU takes by default, which the CPU takes here

test-paths-parts:
	@$(call parts,--then plugin! $(PATHS:%=path-%) $(PATHS:%=path-fuzz-%))

test-floats: test-floats-parts ## the tests that compare a model's floats, with three instruction sets

test-floats-parts:
	@$(call parts,--then setup! plugin! $(foreach set,avx512 avx2 sse41,fork-floats-$(set) plugin-floats-$(set)))

test-browser: test-browser-parts ## the tests of pages, in a Chromium

test-browser-parts:
	@$(call parts,--then setup! plugin! browser fork-browser plugin-browser)

test-device: test-device-parts ## what wants an accelerator, on a machine that has one: selfcheck, and the tests marked "device"

test-device-parts:
	@$(call parts,--then device! device-selfcheck device-tests)

device:
	@$(DEVICE_PYTHON) -m build_tools.device

device-selfcheck:
	@$(IN_PLUGIN) $(DEVICE_PYTHON) -m sequence_hooks.selfcheck examples/forkjoin-tiny --max-model-len 512 \
	  --gpu-memory-utilization 0.3

device-tests:
	@$(IN_PLUGIN) $(DEVICE_PYTHON) -m pytest -m device mytests/v1

test-all: test-all-parts ## every test and check there is: hours

test-all-parts: export FULL = 1
test-all-parts: export COVERAGE = 1
test-all-parts: export FUZZ_SECONDS = 600
test-all-parts:
	@$(call parts,$(CHAINS) --then checks test-browser test-releases test-paths test-floats dist bench-quick bench-plugin-quick \
	  fuzz fuzz-plugin fuzz-injection)

checks: checks-parts ## lint, check-core and docs, side by side; PAGES=1 has the tests of pages run beside them

checks-parts: setup plugin
	@$(call parts,--chain lint lint $(call if_pages,fork-browser) --chain core check-core docs $(call if_pages,plugin-browser))

ci: ci-parts ## what .ci/run runs

ci-parts: export COVERAGE = 1
ci-parts: export PAGES = 1
ci-parts:
	@$(call parts,$(CHAINS) --then \
	  'browser=timeout 300 make browser || echo "No Chromium can be had here: the tests of pages are skipped."' \
	  checks turns)

turns: turns-parts ## of the rest of test-all those parts whose turn it is, and those that the changed files ask for

turns-parts:
	@$(call leaving_failures,build_tools.turns --seconds $(TURNS_SECONDS) --run)

# The last line of all of these is make's own, and names what has failed.
$(OF_PARTS):
	@$(if $(shell cat build/durations/$@.failed 2>/dev/null),$(error $(shell cat build/durations/$@.failed)))

durations: ## what took how long in the latest of these: build/durations/durations.md
	@$(call with_any_python,build_tools.durations)

fork-tests: setup
	@$(BIN)/python -m pytest -m "$(SELECTED)" $(OTHERS) $(SPREAD)

fork-surgical: setup
	@$(BIN)/python -m pytest -m "not model and $(SELECTED)" --cov $(SPREAD)

fork-model: setup
	@$(BIN)/python -m pytest -m "model and $(SELECTED)" $(OTHERS) $(SPREAD)

fork-apart: setup
	@$(BIN)/python -m pytest -m "$(if $(filter-out 0,$(COVERAGE)),model and )$(SELECTED)" $(SPREAD) $(APART)

fork-alone: setup
	@$(BIN)/python -m pytest -m "$(SELECTED)" $(ALONE)

plugin-tests: plugin
	@$(IN_PLUGIN) $(CURDIR)/$(PLUGIN)/bin/python -m pytest -m "$(SELECTED)" $(SPREAD) $(ON_PLUGIN)

# A file may have tests that are marked "full" in one environment alone: that none is selected is no failure.
fork-full: setup
	@$(BIN)/python -m pytest -m "full and not browser and not device" $(SPREAD) $(TESTS) || test $$? = 5

plugin-full: plugin
	@$(IN_PLUGIN) $(CURDIR)/$(PLUGIN)/bin/python -m pytest -m "full and not browser and not device" $(SPREAD) \
	  $(or $(TESTS),$(ON_PLUGIN)) || test $$? = 5

fork-browser: setup
	@$(BIN)/python -m pytest -m browser

plugin-browser: plugin
	@$(IN_PLUGIN) $(CURDIR)/$(PLUGIN)/bin/python -m pytest -m browser $(ON_PLUGIN)

fork-floats-%: setup
	@$(FLOATS_$*) $(BIN)/python -m pytest -m "$(FLOATS)" $(SPREAD)

plugin-floats-%: plugin
	@$(IN_PLUGIN) $(FLOATS_$*) $(CURDIR)/$(PLUGIN)/bin/python -m pytest -m "$(FLOATS)" $(SPREAD) \
	  $(or $(TESTS),$(ON_PLUGIN))

path-fuzz-%: plugin
	@$(PLUGIN)/bin/python -m build_tools.paths $(call runner_of,$*)
	@$(call on_path,$*) $(CURDIR)/$(PLUGIN)/bin/python -W ignore -m mytests.fuzz --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)
	@$(call on_path,$*) $(CURDIR)/$(PLUGIN)/bin/python -W ignore -m mytests.fuzz --injected --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

path-%: plugin
	@$(PLUGIN)/bin/python -m build_tools.paths $(call runner_of,$*)
	@$(call on_path,$*) $(CURDIR)/$(PLUGIN)/bin/python -m pytest -q -m "paths and $(SELECTED)" $(SPREAD) \
	  $(or $(TESTS),$(ON_PLUGIN))

release-%: plugin
	@$(PLUGIN)/bin/python -m build_tools.releases $*
	@$(call on_release,$*) $(CURDIR)/$(PLUGIN)/bin/python -m pytest -q $(SPREAD) \
	  -m "(not model or every_release) and $(SELECTED)" mytests/rules mytests/v1
	@$(PLUGIN)/bin/python -m build_tools.paths second
	@$(call on_release,$*) PYTHONPATH=$(CURDIR)/build/releases/$*:$(PLUGIN_PATH):$(CURDIR)/build/paths/second \
	  PATH_UNDER_TEST=second-asynchronous $(OF_SECOND_RUNNER) $(CURDIR)/$(PLUGIN)/bin/python -m pytest -q \
	  -m "every_release and paths and $(SELECTED)" mytests/v1/test_on_a_model.py
