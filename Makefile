# The commands of a contributor. `make test` requires Rust, and installs Redis, PostgreSQL and curl on Debian and Ubuntu.

# The server that the tests start: a name on the PATH or a path. Valkey works as well.
SERVER ?= redis-server
CARGO ?= cargo
# `make features` builds each of them alone, and the crate without any.
FEATURES := axum redis redis-tls postgres postgres-tls tracing metrics dashboard conformance test-util

export SERVER

# All test programs have one set of features and one profile, so nothing is compiled twice for them.
# The features of `make test`, so that nothing is compiled twice.
TESTS := $(CARGO) test --workspace --all-features

# Words in the names of the tests that `make test-long` runs instead of `make test`.
LONG := load:: lets_server_sleep unfenced_ledger library:: topologies:: managers_over_failing matrix:: documented_user_passes tls_passes pool_with

# The versions of PostgreSQL of `make test-postgres`. Debian 12 has 15.
VERSIONS ?= 13.23.0 14.20.0 16.11.0 17.7.0 18.1.0

# The number of runs of each fault in `make faults`, and words that select faults by name.
RUNS ?= 20
ROWS ?=

# The rounds of `make bench` and its scenarios. Without names, all scenarios run. HERD_SECONDS and STARVATION_SECONDS
# are the lengths of a window of `herd` and `starvation`.
ROUNDS ?= 5
SCENARIOS ?=
HERD_SECONDS ?= 5
STARVATION_SECONDS ?= 5

# The shard of mutants that `make mutants` tests.
SHARD ?= 0/1

# The seconds of `make fuzz`.
FUZZ_SECONDS ?= 60

# The number of steps of `make queue`, and the seed of a single run.
STEPS ?= 100000
QUEUE_SEED ?=

# The number of seeds of `make simulate` and the first one. SEED runs a single seed and prints its trace.
SEEDS ?= 100000
FIRST ?= 0
SEED ?=

.DEFAULT_GOAL := help
.PHONY: help test examples browser test-long curl postgres test-servers test-postgres test-pgbouncer fuzz faults versions queue simulate mutants server lint api features features-lint features-test deny bench instructions interop ops

help:
	@echo 'make test      unit, integration and documentation tests, with all features'
	@echo 'make test-long  topologies, load, each fault once, and processes that are killed for PROCESSES_SECONDS=n'
	@echo 'make test-servers  the Redis tests against Redis 6.2, 7.0, 8.2, Valkey 8.1 and 9.1, and proxies (EXCLUDE="names"; requires Python, Go, Maven)'
	@echo 'make test-postgres  the PostgreSQL tests against other versions (VERSIONS="$(VERSIONS)"; requires Python, Maven)'
	@echo 'make test-pgbouncer  the tests behind PgBouncer with the version of Debian 13 (requires Debian, a C compiler)'
	@echo 'make browser   the dashboard in Chromium (STORE=1 replaces docs/dashboard.png)'
	@echo 'make faults    each fault $(RUNS) times under load, as a table (RUNS=n, ROWS="words of names"; 100 000 locks run once)'
	@echo 'make versions  processes of this version beside those of the commit OLD, as in a rolling upgrade (RUNS=$(RUNS))'
	@echo 'make fuzz      requests from a fuzzer against each layer, for FUZZ_SECONDS=n (requires a nightly Rust and cargo-fuzz)'
	@echo 'make simulate  the engine under simulated faults, in virtual time (SEEDS=n, FIRST=n; SEED=n: one, with its trace)'
	@echo 'make queue     random steps of the queues in Redis and PostgreSQL against references (STEPS=n, QUEUE_SEED=n)'
	@echo 'make mutants   mutants of the engine and the middleware that no test detects (SHARD=k/n, JOBS=n)'
	@echo 'make lint      words, names of tests, sizes, format, clippy and documentation, warnings are errors'
	@echo 'make deny      licenses, sources and bans of the dependencies (installs cargo-deny)'
	@echo 'make api       the public API, against api.txt (STORE=1 stores; requires Rust 1.95, which rustup installs)'
	@echo 'make features  clippy with each feature alone and without features, and the dashboard without metrics'
	@echo 'make bench     comparison with other locks, into benches/results (ROUNDS=n, SCENARIOS="uncontended hot", HERD_SECONDS=n)'
	@echo 'make instructions  instruction counts of the hot paths, against the stored ones (STORE=1 stores; requires valgrind)'
	@echo 'make ops       alerts, dashboard and metrics, also under faults, with Prometheus (downloads it on Debian and Ubuntu)'
	@echo 'make interop   locks shared with Java, against Redisson (requires a JDK 17, Maven, Redis 7)'
	@echo 'POSTGRES_BIN=folder  the programs of PostgreSQL (default: the newest in /usr/lib/postgresql)'
	@echo 'SERVER=name    the Redis server that the tests start (now: $(SERVER))'
	@echo 'PROCESSES_SECONDS=n  duration of the test with several processes (default: 60)'
	@echo
	@echo 'cargo run -p example-orders   the example to copy; also `bank` (lost updates), `tonic` (gRPC), `jobs` (intervals), `limits` (permits)'

# `cargo test` excludes the benchmarks and programs with `test = false` in Cargo.toml.
# One build of the examples and the tests uses the cores better than two.
test: BESIDE := --tests
test: server postgres curl examples
	CARGO='$(CARGO)' .ci/test --workspace --all-features -- $(LONG:%=--skip %)

# Tests start them.
examples:
	$(CARGO) build --workspace --all-features --bins --examples $(BESIDE)

# The tests that `make test` skips, and the programs that `cargo test` excludes. Each of these tests starts many servers, so
# fewer of them run at a time.
test-long: server postgres examples
	RUST_TEST_THREADS=8 CARGO='$(CARGO)' .ci/test --workspace --all-features --test engine --test postgres --test redis -- $(LONG)
	CARGO='$(CARGO)' .ci/test --workspace --all-features --test faults --test processes

# The screenshots go to target/tmp/dashboard. Chromium takes a core, so few tests run at a time.
browser: examples
	command -v chromedriver >/dev/null || .ci/install chromium chromium-driver
	$(TESTS) --test browser -- --test-threads 2

# Prints one line per version and module of tests/redis. Their output goes to target/servers/log.
test-servers: server
	CARGO='$(CARGO)' .ci/test-servers

test-postgres: examples
	VERSIONS='$(VERSIONS)' CARGO='$(CARGO)' .ci/test-postgres

test-pgbouncer: postgres
	CARGO='$(CARGO)' .ci/test-pgbouncer

# A workspace of its own. It checks what `tests/http/random` checks with fixed seeds.
fuzz:
	$(CARGO) +nightly fuzz run requests -- -max_total_time=$(FUZZ_SECONDS)

# Prints a table of violations, overlaps, recovery times and orphaned keys. `make test-long` runs each fault once.
faults: server postgres
	FAULT_RUNS=$(RUNS) $(TESTS) --test faults -- $(ROWS)

versions: server
	RUNS=$(RUNS) OLD='$(OLD)' CARGO='$(CARGO)' .ci/versions

# `make test` takes 2 000 steps.
queue: server postgres
	QUEUE_STEPS=$(STEPS) $(if $(QUEUE_SEED),QUEUE_SEED=$(QUEUE_SEED)) \
		$(TESTS) --test postgres --test redis -- random_steps --nocapture

# `make test` runs 2 000 seeds. WITHOUT and ONLY choose classes: tests/simulate/main.rs.
simulate:
	SEEDS=$(SEEDS) FIRST=$(FIRST) SEED=$(SEED) \
		$(CARGO) test --package simulate --release -- seeds_keep_invariants --nocapture

# Builds and tests each mutant, which takes hours for all shards. The first shard is 0.
mutants:
	.ci/mutants $(SHARD)

server:
	@.ci/server

postgres:
	@.ci/postgres

# The client of the table of statuses.
curl:
	@command -v curl >/dev/null || .ci/install curl

# The documentation is built with the flags of docs.rs: package.metadata.docs.rs in Cargo.toml.
lint:
	@[ $$(wc -l <README.md) -le 140 ] || { echo 'README.md: at most 140 lines; the rest belongs in src/guide'; exit 1; }
	.ci/words
	.ci/test-names
	.ci/mass
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	$(CARGO) clippy --workspace --all-features --test '*' -- -D warnings
	$(CARGO) clippy --manifest-path fuzz/Cargo.toml --no-default-features --locked -- -D warnings
	$(CARGO) clippy --manifest-path benches/compare/Cargo.toml --all-targets --locked -- -D warnings
	RUSTDOC=$(CURDIR)/.ci/rustdoc RUSTDOCFLAGS='-D warnings --cfg docsrs' $(CARGO) doc --workspace --all-features --no-deps

# Compares the public API with api.txt.
api:
	.ci/public-api

features: features-lint features-test

features-lint:
	@set -e; for feature in $(FEATURES) ''; do \
		echo "feature: $${feature:-none}"; \
		$(CARGO) clippy --quiet --lib --no-default-features --features "$$feature" -- -D warnings; \
	done
	@tree=$$($(CARGO) tree --no-default-features --edges normal --prefix none) || exit 1; \
	if echo "$$tree" | grep -E '^(axum|redis|deadpool|tokio-postgres)'; then \
		echo 'without features the crate must not depend on these'; exit 1; \
	fi

# The dashboard reads the counts of the engine also without the feature `metrics`. The last program checks that an acquire
# and a request allocate as often without features as `make test` checks with all of them. `make mutants` runs the unit
# tests with these few features.
features-test:
	$(CARGO) test --lib --no-default-features --features axum,conformance,test-util
	$(CARGO) test --package tests --no-default-features --features dashboard,redis,tracing --test http --test cost -- dashboard
	$(CARGO) test --package tests --no-default-features --test cost -- acquire layer

# Advisories change without a commit, so only the workflow checks them.
deny:
	command -v cargo-deny >/dev/null || $(CARGO) install cargo-deny --locked --debug
	$(CARGO) deny --all-features check bans licenses sources

# Compares with other locks. `cargo bench --bench speed` is the short benchmark.
bench: server
	$(CARGO) run --release --manifest-path benches/compare/Cargo.toml $(if $(shell pkg-config --exists openssl && echo yes),--features distributed-postgres) -- \
		--rounds $(ROUNDS) \
		--herd-seconds $(HERD_SECONDS) --starvation-seconds $(STARVATION_SECONDS) $(SCENARIOS)

# Compares the instructions of the hot paths with the files in benches/instructions, without metrics and with them.
instructions:
	$(CARGO) bench --bench instructions -- $(if $(STORE),--store)
	$(CARGO) bench --bench instructions --features metrics -- $(if $(STORE),--store)

# Checks what `ops/` has for Prometheus and Grafana, also over the metrics of processes with faults.
ops: server
	CARGO='$(CARGO)' .ci/ops

# Tests against two versions of Redisson.
interop: server
	$(TESTS) --test interop_redisson
