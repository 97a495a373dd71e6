# One command each; every target sets up what it needs itself, and a second run starts in seconds.
PYTHON ?= python3
BIN := .venv/bin
NATIVE := $(wildcard mdio/native/*/*.cpp mdio/native/*/*.h)
# Tests wait for disks, servers and ranks: one more than there are cores keeps these busy.
WORKERS ?= 3
# A file's tests run on one of them, so that what they share is made once; in the order of collection.
PYTEST := -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: install mpi mpi-where-possible web-where-possible store-where-possible \
	packages-where-possible wasm-where-possible demo docs test explore coverage check types format peers cluster fuzz \
	matrix wheel clean

install: .venv/installed mpi-where-possible web-where-possible store-where-possible

.venv/installed: setup.cfg pyproject.toml setup.py mdio/_version.py $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dask,advise,report,docs,test]"
# An editable install is not compiled, and where PYTHONDONTWRITEBYTECODE is set each start would do it.
	$(BIN)/python -m compileall -q mdio layouts converters readers tests bench
	touch $@

# A second environment with MPICH and parallel HDF5, which PyPI's wheels lack.
mpi:
	PYTHON=$(PYTHON) ./setup-mpi.sh

mpi-where-possible:
	PYTHON=$(PYTHON) ./setup-mpi.sh || echo "Going on without MPI: its tests are left out." >&2

# What the pages in web/ import, and their tests, which also want chromium.
web-where-possible: web/node_modules/.package-lock.json

web/node_modules/.package-lock.json: web/package-lock.json
	npm ci --prefix web --silent && touch $@ || echo "Going on without npm: web/ is not tested." >&2

# The codecs for web pages: needs clang, lld and Debian's libraries for WebAssembly.
WASM := memory rigid_coordinates rigid_decode rigid_description rigid_entropy_decode \
	rigid_entropy_decode_wide rigid_part rigid_part_avx2 rigid_part_avx512 rigid_selection
WASM_EXPORTS := malloc mdio_memory_new mdio_message mdio_rigid_decode
web/rigid.wasm: $(wildcard mdio/native/codecs/*.cpp mdio/native/codecs/*.h)
	clang++ --target=wasm32-wasi -mexec-model=reactor -msimd128 -std=c++17 -Oz -w -fno-exceptions \
		-fno-rtti -ffp-contract=off -Imdio/native/codecs $(WASM:%=mdio/native/codecs/%.cpp) \
		-nodefaultlibs -lc++ -lc++abi -lc $(WASM_EXPORTS:%=-Wl,--export=%) -Wl,--strip-all -o $@

wasm-where-possible: packages-where-possible
	@$(MAKE) --no-print-directory web/rigid.wasm || echo "Going on without clang: rigid.wasm is not tested." >&2

# An S3 server of its own for the tests of stores, which else run on moto alone: needs Go.
VERSITYGW := github.com/versity/versitygw/cmd/versitygw@v1.8.0
store-where-possible: $(BIN)/versitygw

$(BIN)/versitygw: | .venv/installed
	GOBIN=$(abspath $(BIN)) go install $(VERSITYGW) || echo "Going on without versitygw: stores are tested on moto alone." >&2

# A browser for the pages, what builds their codecs, Ceph for the small cluster: Debian's, which root can install.
PACKAGES := attr ceph-common ceph-fuse ceph-mds ceph-mgr ceph-mon ceph-osd chromium iproute2 \
	clang lld wasi-libc libc++-dev-wasm32
packages-where-possible:
	@dpkg -s $(PACKAGES) >/dev/null 2>&1 || { test "$$(id -u)" = 0 && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(PACKAGES) \
		>/dev/null; } || echo "Going on without $(PACKAGES): some tests are left out." >&2

demo: .venv/installed
	$(BIN)/python bench/demo.py

# The site, in docs/_build; a warning is an error.
docs: .venv/installed
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build

test: install packages-where-possible wasm-where-possible
	$(BIN)/python $(PYTEST) $(PYTEST_ARGS)

# Tests of random examples with new ones, which `make test` has not. What fails becomes an @example.
explore: .venv/installed
	$(BIN)/python $(PYTEST) -m hypothesis --hypothesis-profile=explore $(PYTEST_ARGS)

# What of the product the tests run, and that it is no less than the floor in pyproject.toml, which
# some tests alone (PYTEST_ARGS) do not reach. All folders are named: a file that no test imports
# would else not count.
coverage: install
	$(BIN)/python $(PYTEST) --cov=mdio --cov=converters --cov=layouts --cov=readers \
		--cov-report=term:skip-covered $(if $(PYTEST_ARGS),--cov-fail-under=0) $(PYTEST_ARGS)

check: .venv/installed types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# mypy sees only mdio/ when run in this folder, so it gets the package as it will be installed.
types: .venv/installed
	rm -rf build/typed && mkdir -p build/typed/mdio
	ln -s $(abspath $(wildcard mdio/*)) build/typed/mdio/
	ln -s $(abspath layouts converters readers) build/typed/mdio/
	cd build/typed && $(abspath $(BIN))/mypy --config-file $(abspath pyproject.toml) \
		--cache-dir $(abspath .mypy_cache) -p mdio

# mdio beside MDAnalysis, GROMACS and others, which get environments of their own. PEERS_ARGS=--quick
peers: .venv/installed
	$(BIN)/python bench/peers/compare.py $(PEERS_ARGS)

# Layouts, ranks and stripes on a miniature cluster (CephFS over cables of 200 Mbit/s): needs root.
cluster: install
	$(BIN)/python bench/cluster/cluster.py up
	$(BIN)/python bench/cluster/study.py $(CLUSTER_ARGS); \
		status=$$?; $(BIN)/python bench/cluster/cluster.py down; exit $$status

# libFuzzer on the native code, and damaged chunks: FUZZ_SECONDS each. Needs clang.
FUZZ_SECONDS ?= 60
fuzz: .venv/installed
	PYTHON=$(BIN)/python tests/fuzz/run.sh $(FUZZ_SECONDS)

# The wheel, in environments of its own and away from the sources, on each Python found, with the
# newest and the oldest dependencies; what needs MPI is left out. MATRIX_ARGS="--python 3.13"
MATRIX := build/nox/bin/python -m nox --envdir build/matrix
build/nox/bin/nox:
	$(PYTHON) -m venv build/nox
	build/nox/bin/python -m pip install --quiet nox uv

matrix: build/nox/bin/nox
	PATH="$(abspath build/nox/bin):$$PATH" $(MATRIX) $(MATRIX_ARGS)

wheel: build/nox/bin/nox
	PATH="$(abspath build/nox/bin):$$PATH" $(MATRIX) -k newest --python \
		$$($(PYTHON) -c 'import platform; print(platform.python_version().rpartition(".")[0])')

format:
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-mpi .venv-peers .venv-zarrtraj build .mypy_cache .ruff_cache .pytest_cache demo-output bench-output
