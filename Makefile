# The everyday commands. `make` alone lists them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
FLOWER ?= .venv-flower
EXAMPLES ?= .venv-examples
HF     ?= .venv-hf
FUZZ   ?= .venv-fuzz
DEPLOY_LINT ?= .venv-lint
SUPPLY ?= .venv-supply
DOCS   ?= .venv-docs
SITE   := server/fedloom/server/web/documentation.zip
# Half of the time of pip is compiling; what is imported is compiled then.
LAZILY := --no-compile
KILLS  ?= 1000
CLIENTS ?= 5000
MINUTES ?= 30
SEED   ?= 1
DATA   ?= digits
CLUSTER ?= out/cluster
DEVICES ?= 6
PORT   ?= 8443
OLD    ?= HEAD^
export PATH := $(CURDIR)/$(BIN):$(PATH)
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes, which would each compile all

.DEFAULT_GOAL := help
.PHONY: docs browser cluster cluster-status cluster-restart cluster-stop diagrams console fuzz help demo papers examples compiled test lint types platforms arrows unit long longest replicas matrix flower flower-examples hf crash cost faults hostile format generate clean package bundle locks sbom lint-deploy same soak upgrade

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.sim: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[sim]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.sim

demo: $(VENV)/.sim ## a server, eight clients and a model: DATA=mnist DATA_DIR=folder, KEEP=1 to look at the console, MASKED=1 to hide each update
	fedloom demo --data $(DATA) $(if $(MASKED),--masked) $(if $(DATA_DIR),--data-dir '$(DATA_DIR)') $(if $(KEEP),--keep)

CLUSTER_DO = PYTHONPATH=scripts $(BIN)/python -m cluster $(1) --folder '$(CLUSTER)'

cluster: $(VENV)/.dev ## a replicated deployment on this machine: three servers, PostgreSQL, S3, haproxy, DEVICES (6); PORT
	$(call CLUSTER_DO,start) --devices $(DEVICES) --port $(PORT)

cluster-status: $(VENV)/.dev ## what runs where in it, who drives, and what to try
	@$(call CLUSTER_DO,status)

cluster-restart: $(VENV)/.dev ## start those of its servers that have ended
	@$(call CLUSTER_DO,restart)

cluster-stop: $(VENV)/.dev ## end it, and remove its folder; KEEP=1 keeps it
	@$(call CLUSTER_DO,stop) $(if $(KEEP),--keep)

papers: $(VENV)/.sim ## published tables beside ours: DATA_DIR=folder with MNIST, QUICK=1 for minutes
	fedloom reproduce mcmahan2017 $(if $(QUICK),--quick) $(if $(DATA_DIR),--folder '$(DATA_DIR)',--download)

examples: $(VENV)/.sim ## simulate the examples that need no download; reports in out/examples
	rm -rf out/examples
	for name in digits devices asynchronous synthetic; do \
	  fedloom simulate simulations/examples/$$name.toml --out out/examples/$$name || exit 1; done

compiled: $(VENV)/.dev ## the tests that compile a kernel: 20 s, a C++ compiler
	FEDLOOM_TEST_COMPILE=1 pytest -q tests/simulation/kernels/test_compiled.py

test: $(VENV)/.dev ## everything that must hold before a change lands, with the time of each part
	MAKE='$(MAKE)' scripts/timed.sh --beside types lint arrows unit

lint: $(VENV)/.dev ## style, formatting, and generated code that has not drifted
	ruff check .
	ruff format --check .
	scripts/protogen.sh --check
	scripts/vendored.py

types: $(VENV)/.dev ## static types
	MYPYPATH=server:client_sdk:strategies:simulations mypy \
	  -p fedloom.protocol -p fedloom.client -p fedloom.cli -p fedloom.strategies \
	  -p fedloom.server -p fedloom.site -p fedloom.simulation

platforms: $(VENV)/.dev ## static types of the agent and the commands, as Windows and macOS see them
	printf '%s\n' win32 darwin | MYPYPATH=client_sdk:strategies xargs -P 2 -I PLATFORM mypy \
	  --platform PLATFORM --cache-dir .mypy_cache/PLATFORM \
	  -p fedloom.protocol -p fedloom.client -p fedloom.cli

arrows: $(VENV)/.dev ## which package may import which
	lint-imports

# Three for two cores: workers often wait, for a server to end, say. Each collects all tests: 12 s.
unit: $(VENV)/.dev ## unit, property and end-to-end tests
	scripts/pytest.sh -n 3 --dist worksteal

long: $(VENV)/.dev ## the tests that take many seconds each: every kind of run under fire
	scripts/pytest.sh -q -n 3 --dist worksteal -m 'long and not longest' --ignore tests/e2e/replicas

longest: browser $(FLOWER)/.done ## more cases of what long, replicas, console and flower test, and what measures memory: an hour
	scripts/pytest.sh -q -n 3 --dist worksteal -m longest --ignore tests/console
	$(FLOWER)/bin/python -m pytest -q -m longest tests/flower
	FEDLOOM_TEST_CONSOLE=1 scripts/pytest.sh -q -m longest tests/console

replicas: $(VENV)/.dev ## long tests of replicas: killed, stopped, moved, upgraded, and their database
	scripts/pytest.sh -q -n 2 --dist worksteal -m 'long and not longest' tests/e2e/replicas

matrix: $(VENV)/.dev ## every part of a run in every situation, simulated and deployed: 10 minutes
	FEDLOOM_TEST_MATRIX=1 pytest -q -n 2 --dist loadscope -m 'long or not long' \
	  tests/simulation/wire/test_same_rounds_everywhere.py

$(FLOWER)/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(LAZILY) \
	  -e '.[flower,server,sklearn,torch]' pytest hypothesis
	@touch $@

flower: $(FLOWER)/.done ## apps, strategies and SuperNodes of Flower, in an environment of its own, 10 minutes
	$(FLOWER)/bin/python -m pytest -q -m 'not longest' tests/flower tests/strategies/test_flwr.py \
	  tests/strategies/robust/test_flwr.py tests/strategies/privacy/test_flwr.py
	$(FLOWER)/bin/python -m pytest -q -W ignore::DeprecationWarning \
	  -o addopts="--import-mode=importlib --doctest-modules -ra" \
	  client_sdk/fedloom/client/flower client_sdk/fedloom/client/supernodes server/fedloom/server/flower

$(EXAMPLES)/.done: pyproject.toml benchmarks/flower_examples/requirements.txt
	$(PYTHON) -m venv $(EXAMPLES)
	$(EXAMPLES)/bin/pip install --quiet --disable-pip-version-check \
	  -e '.[flower,server,sklearn,torch,xgboost]' -r benchmarks/flower_examples/requirements.txt
	@touch $@

flower-examples: $(EXAMPLES)/.done ## Flower's own examples, beside Flower's loop: REPO=folder with its repository, 40 minutes
	$(EXAMPLES)/bin/python benchmarks/flower_examples/run.py '$(REPO)' $(if $(ONLY),--only $(ONLY)) \
	  --table docs/flower-examples.md

$(HF)/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(HF)
	$(HF)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(LAZILY) -e '.[hf,sim]' pytest hypothesis trl
	@touch $@

hf: $(HF)/.done ## clients of transformers, peft and TRL, in an environment of its own, 3 minutes
	$(HF)/bin/python -m pytest -q tests/client/hf
	$(HF)/bin/python -m pytest -q -m 'long or not long' tests/simulation/script \
	  tests/simulation/sources --ignore tests/simulation/sources/test_mapped.py

$(FUZZ)/.done: constraints.txt
	$(PYTHON) -m venv $(FUZZ)
	$(FUZZ)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt 'schemathesis>=4.30,<5'
	@touch $@

fuzz: $(VENV)/.dev $(FUZZ)/.done ## fuzz the HTTP API from its own description, a minute or two
	PYTHONPATH=tests python tests/support/fuzz.py $(FUZZ)/bin/schemathesis

upgrade: $(VENV)/.dev ## finish what the commit OLD began by this one, and compare the bits: 5 minutes; REPLICAS=1: of three replicas, one after another
	$(if $(REPLICAS),python tests/support/rolling_upgrade.py,scripts/try_upgrade.py) $(OLD)

same: $(VENV)/.dev ## compare the models of the commit OLD with this one's, case by case: 15 minutes
	scripts/compare_commits.py $(OLD)

crash: $(VENV)/.dev ## kill servers and clients KILLS times (1000) and compare the bits; MASKED=1: in masked rounds; REPLICAS=1: two replicas; GATES=1: three, with gates
	python tests/support/$(if $(REPLICAS)$(GATES),replicas_)$(if $(MASKED),masked_)crash.py --kills $(KILLS) --seed $(SEED)$(if $(GATES), --gates)

cost: $(VENV)/.dev ## instructions of kernels and of a round against benchmarks/cost.json: two minutes, valgrind
	python benchmarks/cost.py $(if $(CASES),--cases $(CASES))

hostile: $(VENV)/.dev ## rounds of 20 clients beside floods and slow peers, kind by kind: half an hour, loopback only
	python benchmarks/hostile.py $(if $(KINDS),--kinds $(KINDS))

soak: $(VENV)/.dev ## CLIENTS streams (5000), 1 % of them leaving a minute, rounds for MINUTES (30): does anything grow?
	nice python benchmarks/soak.py --clients $(CLIENTS) --minutes $(MINUTES)

faults: $(VENV)/.dev ## networks, disks, clocks and processes that fail: 5 minutes, more as root
	FEDLOOM_TEST_FAULTS=1 scripts/pytest.sh -q -n 4 --dist loadscope tests/faults

# Playwright alone: to install the extra `console-test` would replace fedloom's own files for a moment,
# while targets beside this one run them.
browser: $(VENV)/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	scripts/vendored.py --axe out/axe

console: browser ## the console in a real browser, a quarter of an hour: chromium and npm; pictures in out/console
	FEDLOOM_TEST_CONSOLE=1 scripts/pytest.sh -q tests/console

$(DOCS)/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(LAZILY) -e '.[docs]'
	@touch $@

docs: $(DOCS)/.done ## the documentation site, with its links checked, in out/site and in the server: 2 minutes
	$(DOCS)/bin/python scripts/site/build.py

$(SITE): $(DOCS)/.done $(wildcard $(shell git ls-files 2>/dev/null))  # pages quote the code
	$(DOCS)/bin/python scripts/site/build.py

diagrams: $(VENV)/.dev ## draw the diagrams of docs/ that have changed: chromium and npm
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	scripts/site/diagrams.py

format: $(VENV)/.dev ## put the code into form
	ruff check --fix .
	ruff format .

generate: $(VENV)/.dev ## make the protobuf modules anew
	scripts/protogen.sh

$(DEPLOY_LINT)/.done: constraints.txt
	$(PYTHON) -m venv $(DEPLOY_LINT)
	$(DEPLOY_LINT)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt \
	  yamllint kubernetes-validate check-jsonschema dockerfile-parse
	@touch $@

lint-deploy: $(DEPLOY_LINT)/.done ## container files, compose, Kubernetes, systemd and scripts of deploy/
	scripts/lint_deploy.sh $(DEPLOY_LINT)

package: $(VENV)/.dev $(SITE) ## build wheel, sdist and offline bundle, and install them: 4 minutes, a network
	FEDLOOM_TEST_PACKAGE=1 scripts/pytest.sh -q tests/packaging

$(SUPPLY)/.done: constraints.txt
	$(PYTHON) -m venv $(SUPPLY)
	$(SUPPLY)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt \
	  'pip-tools>=7.6,<8' 'cyclonedx-bom>=7.5,<8'
	@touch $@

locks: $(SUPPLY)/.done ## requirements/ anew from constraints.txt: what a device and a server install, with hashes
	scripts/lock.sh $(SUPPLY)

sbom: $(SUPPLY)/.done ## install both by their hashes, and list them as CycloneDX in out/sbom: a minute, a network
	scripts/sbom.sh $(SUPPLY)

bundle: ## what machines without a network install from, in out/bundle: EXTRAS=server for a server
	PYTHON=$(PYTHON) scripts/offline_bundle.sh --out out/bundle $(if $(EXTRAS),--extras $(EXTRAS))

clean: ## remove the virtual environment and everything made
	rm -rf $(VENV) $(FLOWER) $(EXAMPLES) $(HF) $(FUZZ) $(DEPLOY_LINT) $(SUPPLY) $(DOCS) out .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
