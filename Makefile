# make demo and make test do everything from a fresh clone, set-up included.
JOBS ?= $(shell nproc)
PRESET ?= cpu
BUILD = $(if $(filter cpu,$(PRESET)),build,build-$(PRESET))

.PHONY: help setup oracles models build demo test clients check format sanitize asan tsan sanitize-cuda bench report cuda cuda-compile cuda-all clean

help:
	@echo "make demo      build, then generate text three ways from the model in models/ and compare"
	@echo "make test      build and run all tests"
	@echo "make clients   langchain, openai-agents, lm-eval, aiperf, schemathesis ... against the server (own .venv-clients)"
	@echo "make check     formatting, layer table, clang-tidy"
	@echo "make sanitize  the tests under ASan+UBSan and TSan"
	@echo "make sanitize-cuda  every kernel under compute-sanitizer; needs a GPU"
	@echo "make bench     kernels and steps against the memory bandwidth of this machine; llama.cpp beside them after make models"
	@echo "make report    README's table, build/report.html and .pdf from docs/results"
	@echo "make cuda      the CUDA build (needs the toolkit); make cuda-all for every architecture"
	@echo "make format    clang-format in place"

setup:
	@scripts/setup.sh

oracles:
	@scripts/setup.sh --oracles

models: oracles
	@scripts/fetch_models.sh

build: setup
	@cmake --preset $(PRESET) $(if $(filter cuda%,$(PRESET)),,-DCOPPICE_TESTS=OFF) > /dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target coppice

demo: build
	@scripts/demo.sh $(BUILD)/apps/coppice/coppice

test: oracles
	@cmake --preset $(PRESET) -DCOPPICE_TESTS=ON > /dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@scripts/run_tests.sh $(BUILD)

# Large Python packages, so neither part of make test nor of its environment.
clients: build
	@scripts/setup.sh --clients
	@python3 scripts/test_clients.py $(BUILD)/apps/coppice/coppice

check: setup
	@cmake --preset cpu -DCOPPICE_TESTS=ON > /dev/null
	@scripts/check.sh build

format:
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

sanitize: asan tsan

# asan: all tests but long loops. tsan: the tests whose code runs on several threads. The first failure ends the run, so that a run which CI stops
# at its time limit has had none.
asan: oracles
	@cmake --preset asan -DCOPPICE_TESTS=ON > /dev/null
	@cmake --build build-asan -j $(JOBS) --target sanitized_tests
	@scripts/run_tests.sh build-asan -LE 'slow|long|cuda' --stop-on-failure

tsan: oracles
	@cmake --preset tsan -DCOPPICE_TESTS=ON > /dev/null
	@cmake --build build-tsan -j $(JOBS) --target threaded_tests
	@scripts/run_tests.sh build-tsan -L threads -LE 'slow|long|cuda' --stop-on-failure

sanitize-cuda: cuda
	@scripts/sanitize_cuda.py build-cuda

bench: build
	@scripts/bench.sh $(BUILD)

report:
	@scripts/report.py

cuda: setup
	@cmake --preset cuda > /dev/null && cmake --build build-cuda -j $(JOBS)

cuda-compile: setup
	@cmake --preset cuda -DCOPPICE_TESTS=OFF > /dev/null && cmake --build build-cuda -j $(JOBS) --target coppice_backend_cuda

cuda-all: setup
	@cmake --preset cuda-all > /dev/null && cmake --build build-cuda-all -j $(JOBS)

clean:
	rm -rf build build-*
