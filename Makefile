# What a contributor runs. `make test` needs Rust, and installs the rest on Debian and Ubuntu.

# The server that the tests start: a name on the PATH, or a path. Valkey works too.
SERVER ?= redis-server
CARGO ?= cargo
# Each is built alone, and so is none of them.
FEATURES := axum redis redis-tls tracing metrics conformance test-util

export SERVER

# How often `make faults` runs each fault, and which: words of their names.
RUNS ?= 20
ROWS ?=

# How often `make bench` measures each figure, and which scenarios: without any, all.
# HERD_SECONDS is the length of a window of `herd`.
ROUNDS ?= 5
SCENARIOS ?=
HERD_SECONDS ?= 5

# Which part of the mutants `make mutants` tests.
SHARD ?= 0/1

# How many steps `make queue` takes, and the seed of one run.
STEPS ?= 100000
QUEUE_SEED ?=

# How many seeds `make simulate` runs, from which one on, and one alone: with its trace.
SEEDS ?= 100000
FIRST ?= 0
SEED ?=

.DEFAULT_GOAL := help
.PHONY: help test test-servers faults queue simulate mutants server lint features deny bench instructions interop

help:
	@echo 'make test      unit, integration and documentation tests, with all features'
	@echo 'make test-servers  the Redis tests against Redis 6.2, 7.0, 8.2, Valkey 8.1 and 9.1 (takes Python)'
	@echo 'make faults    every fault $(RUNS) times under load, as one table (RUNS=n, ROWS="words of names"; 100 000 locks once, or by name)'
	@echo 'make simulate  the engine under simulated faults, in virtual time (SEEDS=n, FIRST=n; SEED=n: one, with its trace)'
	@echo 'make queue     random steps of the queue in Redis against a reference (STEPS=n, QUEUE_SEED=n)'
	@echo 'make mutants   changes of the engine and the middleware that no test catches (SHARD=k/n, JOBS=n)'
	@echo 'make lint      format, clippy and documentation, warnings are errors'
	@echo 'make deny      licenses, sources and bans of the dependencies (installs cargo-deny)'
	@echo 'make features  each feature alone, and none'
	@echo 'make bench     beside other locks, into benches/results (ROUNDS=n, SCENARIOS="uncontended hot", HERD_SECONDS=n)'
	@echo 'make instructions  of the hot paths, against what is stored (STORE=1 stores; takes valgrind)'
	@echo 'make interop   locks shared with Java, against Redisson (takes a JDK 17, Maven, Redis 7)'
	@echo 'SERVER=name    the Redis server that the tests start (now: $(SERVER))'
	@echo 'PROCESSES_SECONDS=n  how long the test over many processes runs (60 unless set)'
	@echo
	@echo 'cargo run --example orders   the example to copy; to see updates lost: --example bank'

# Benchmarks and their long runs are no part of it: `cargo test` leaves them out.
test: server
	$(CARGO) test --all-features

# One line per version and test program. Their output goes to target/servers/log.
test-servers: server
	CARGO='$(CARGO)' .ci/test-servers

# A table of violations, overlaps, recovery times and orphaned keys. `make test` runs each fault once.
faults: server
	FAULT_RUNS=$(RUNS) $(CARGO) test --all-features --test faults -- $(ROWS)

# `make test` takes 2 000 steps.
queue: server
	QUEUE_STEPS=$(STEPS) $(if $(QUEUE_SEED),QUEUE_SEED=$(QUEUE_SEED)) \
		$(CARGO) test --all-features --test redis_queue -- random_steps --nocapture

# `make test` runs 2 000 seeds. WITHOUT and ONLY choose classes: tests/simulate/main.rs.
simulate:
	SEEDS=$(SEEDS) FIRST=$(FIRST) SEED=$(SEED) \
		$(CARGO) test --release --all-features --test simulate -- seeds_keep_invariants --nocapture

# Each mutant is built and tested: the whole takes hours. A shard is counted from 0.
mutants:
	.ci/mutants $(SHARD)

server:
	@.ci/server

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --all-features --no-deps

features:
	@set -e; for feature in $(FEATURES) ''; do \
		echo "feature: $${feature:-none}"; \
		$(CARGO) clippy --quiet --lib --no-default-features --features "$$feature" -- -D warnings; \
	done
	@tree=$$($(CARGO) tree --no-default-features --edges normal --prefix none) || exit 1; \
	if echo "$$tree" | grep -E '^(axum|redis|deadpool)'; then \
		echo 'without features the crate must not depend on these'; exit 1; \
	fi

# Advisories change without a commit, so only the workflow checks them.
deny:
	command -v cargo-deny >/dev/null || $(CARGO) install cargo-deny --locked
	$(CARGO) deny --all-features check bans licenses sources

# Beside other locks; `cargo bench --bench speed` has the small one.
bench: server
	$(CARGO) run --release --manifest-path benches/compare/Cargo.toml -- --rounds $(ROUNDS) \
		--herd-seconds $(HERD_SECONDS) $(SCENARIOS)

# Instructions of the hot paths, against benches/instructions/stored.txt.
instructions:
	$(CARGO) bench --bench instructions -- $(if $(STORE),--store)

# Against Redisson itself, in two versions.
interop: server
	$(CARGO) test --all-features --test interop_redisson
