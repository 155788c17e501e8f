# Every target sets up what it needs: a virtual environment with the versions in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS ?= dev
CSRC := src/mnemoscope/kernels/csrc
CPU := $(CSRC)/cpu

.PHONY: test locked lock quick clients docs test-cuda test-faults test-engines fuzz soak mutants sanitize demo lint clean

$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard $(CPU)/*.cpp $(CPU)/*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

# The same environment, but from requirements.lock: nothing is installed whose hash is not in it.
locked:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --require-hashes -r requirements.lock
	$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	touch $(STAMP)

# requirements.lock anew, after a change of constraints.txt.
lock: $(STAMP)
	mkdir -p build
	$(BIN)/pip install -q --dry-run --ignore-installed --report build/report.json -c constraints.txt \
		-e '.[dev,zoo,ray,slurm]' setuptools wheel
	PYTHONPATH=tests $(BIN)/python -m dependencies lock build/report.json > requirements.lock

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check -q .
	$(BIN)/clang-format --dry-run --Werror $(wildcard $(addprefix $(CSRC)/*/*.,h cpp cu cuh))
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m 'not slow and not clients'  # two processes, a thread each: more only wait for each other

# A verdict on layers, scopes and CPU kernels in under a minute on two cores: every test, with every value of each of
# its parameters once instead of all combinations. Left to `make test` are the emulated CUDA kernels, which g++ compiles,
# and tests that start processes, trace, train or attack.
LATER = scopes/test_exploding scopes/test_attacks scopes/test_watch scopes/test_trained_networks \
	scopes/test_ordinary_models layers/test_misfitting_states layers/test_tracing \
	kernels/test_interrupt kernels/test_kernel_frame
quick: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m 'not slow and not clients' --quick tests/test_equations.py tests/layers tests/scopes \
		tests/kernels --ignore-glob='*/test_cuda_*.py' $(LATER:%=--ignore=tests/%.py)

# Other people's libraries with our layers in place of nn.LSTM: accelerate, Lightning, HF Trainer, torchrl, sb3-contrib,
# onnxruntime, TensorBoard, fastai. Minutes, and packages that the usual suite does without. fastai comes without its
# requirements, into a folder of its own: its torchvision would replace torch, and its learner does without it.
FASTAI := fastai fastcore fastdownload fastprogress fasttransform plum-dispatch beartype pandas scikit-learn joblib \
	threadpoolctl narwhals
clients: $(STAMP)
	$(BIN)/pip install -q -c constraints.txt -c tests/clients/constraints.txt -e '.[dev,clients]'
	$(BIN)/pip install -q --no-deps --upgrade --target build/fastai -c tests/clients/constraints.txt $(FASTAI)
	PYTHONPATH=build/fastai OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m clients tests/clients

# The pages of docs/ and the API reference as a site, build/site, that loads nothing from elsewhere. A link that leads
# nowhere and a docstring that names an argument that is not there are errors. The source is read, not run: this takes
# neither torch nor a compiler, and has an environment of its own.
DOCS := build/docs
docs:
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -c "import tomllib; \
		print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" \
		> $(DOCS)/requirements.txt
	$(DOCS)/bin/pip install -q -c constraints.txt -c docs/constraints.txt -r $(DOCS)/requirements.txt
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@echo 'open build/site/index.html; or, to search it too: $(DOCS)/bin/mkdocs serve'

# On a machine with an NVIDIA GPU: every test that needs one, then every CUDA kernel under compute-sanitizer, which comes
# with the CUDA toolkit. Parts of at most ten minutes; ARGS='racecheck' selects by name, ARGS='--list' prints the names.
test-cuda: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m gpu_checks $(ARGS)

# 200 kills at random system calls and moments, 74 errors of the disk, 60 power cuts, two writers of one folder.
test-faults: $(STAMP)
	MNEMOSCOPE_FAULTS=1 $(BIN)/pytest tests/faults

# 20,000 damaged files, misfitting states, odd arguments and hostile pages; ARGS='--only 1234' runs one of them again.
fuzz: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m fuzz.run $(ARGS)

# Training, examining and reporting for ten minutes: memory must not grow. ARGS='--minutes 60' takes longer.
soak: $(STAMP)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m soak $(ARGS)

# Sweeps on Ray, and on submitit's local executor in place of Slurm: 240 MB that the usual suite does without.
test-engines: $(STAMP)
	$(BIN)/pip install -q -c constraints.txt -e '.[ray,slurm]'
	$(BIN)/pytest tests/sweeps/test_remote_engines.py

# Small changes to formulas and figures, each of which some test must notice; ARGS='lyapunov' selects by name or file.
mutants: $(STAMP)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m mutants.run $(ARGS)

# The C++ loops under AddressSanitizer and UndefinedBehaviorSanitizer, as this machine runs them and as any would.
build/sanitized-%.so: $(wildcard $(CPU)/*.cpp $(CPU)/*.h)
	mkdir -p build
	$(CXX) -std=c++17 -O1 -g -fPIC -shared -pthread -fno-omit-frame-pointer -fsanitize=address,undefined \
		-fno-sanitize-recover=all -march=$* $(CPU)/*.cpp -o $@

sanitize: $(STAMP) build/sanitized-native.so build/sanitized-x86-64.so
	for build in native x86-64; do \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=2 \
		MNEMOSCOPE_CPU_KERNELS=$(CURDIR)/build/sanitized-$$build.so \
		$(BIN)/pytest -q tests/kernels/test_fused_layers.py tests/kernels/test_long_sequences.py \
			tests/kernels/test_input_projection.py tests/kernels/test_few_rows.py tests/kernels/test_exponent_range.py \
			tests/kernels/test_final_memory.py tests/kernels/test_gru.py \
			tests/kernels/test_hostile_numbers.py tests/layers/test_misfitting_states.py || exit 1; \
	done

demo: $(STAMP)
	OMP_WAIT_POLICY=passive $(BIN)/python -m mnemoscope.demo  # threads that spin while they wait crawl on a busy machine

clean:
	rm -rf $(VENV) build *.egg-info src/*.egg-info
