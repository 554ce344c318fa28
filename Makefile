# kvpool: `make demo` shows it, `make check` builds and tests it, `make help` lists the rest.
#
# One file, wildcards: a new .c in daemon/, client/*/, kernels/ or tests/*/ is built by itself.  Objects go to
# $(BUILD)/obj; another compiler or set of flags goes to another BUILD (make CC=clang BUILD=build/clang).

BUILD ?= build
ifeq ($(origin CC),default)
CC := gcc
endif
VERSION := 0.1.0
SOVERSION := 0

PREFIX ?= /usr/local
DESTDIR ?=
BINDIR ?= $(PREFIX)/bin
SBINDIR ?= $(PREFIX)/sbin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
SYSTEMDDIR ?= $(PREFIX)/lib
SYSCONFDIR ?= /etc

BUILD_PACKAGES := gcc make pkg-config libc6-dev liburing-dev uuid-dev libhwloc-dev libsodium-dev libssl-dev libxxhash-dev libzstd-dev \
	libjansson-dev libmicrohttpd-dev libncurses-dev libsystemd-dev uthash-dev libopenblas-pthread-dev python3
CHECK_PACKAGES := tmux procps g++ dpkg-dev binutils libcmocka-dev clang-format groff-base spin systemd python3-pytest \
	python3-hypothesis python3-numpy qemu-user
WHEEL_PACKAGES := python3-pip python3-setuptools python3-wheel
PEER_PACKAGES := liblmdb-dev libhiredis-dev memcached redis-server fio
FUZZ_PACKAGES := clang
LINT_PACKAGES := clang clang-tidy cppcheck

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wcast-qual -Wvla -Werror
OPT ?= -O2
CFLAGS ?= $(OPT) -g
SANITIZE ?=
ALL_CFLAGS = -pipe -std=gnu17 -D_GNU_SOURCE -DKVP_VERSION='"$(VERSION)"' $(WARN) $(CFLAGS) $(SANITIZE) -fPIC -pthread -Iinclude
ALL_LDFLAGS = $(LDFLAGS) $(SANITIZE) -pthread -Wl,--as-needed
# in place, $(BUILD)/kvctl finds $(BUILD)/libkvpool.so.0; installed, $(BINDIR)/kvctl finds ../lib
RPATH := -Wl,-rpath,'$$ORIGIN' -Wl,-rpath,'$$ORIGIN/../lib'

# asked when first linked, not while this file is read: `make deps` runs before the packages are there
pkg = $(shell pkg-config --libs $(1))
DAEMON_LIBS = $(call pkg,liburing uuid hwloc libsodium libcrypto libxxhash libzstd libsystemd) -lm
CLIENT_LIBS = $(call pkg,libsodium)
ATTN_LIBS = $(if $(ATTN_BLAS),$(call pkg,openblas)) -lm
KVCTL_LIBS = $(call pkg,jansson ncursesw libsodium libcrypto libxxhash libzstd) -lm
EXPORTER_LIBS = $(call pkg,libmicrohttpd) -lm
ENGINE_LIBS = $(call pkg,jansson libsodium) -lm
TEST_LIBS = $(call pkg,cmocka) -lm
ATTN_BLAS := $(shell grep -ls cblas kernels/*.c)

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
fault = $(patsubst %.c,$(BUILD)/fault/%.o,$(1))
no_main = $(filter-out %/main.o,$(1))
DAEMON_OBJ := $(call obj,$(wildcard daemon/*.c))
DAEMON_FAULT_OBJ := $(call fault,$(wildcard daemon/*.c))
POOL_OBJ := $(call obj,$(wildcard client/libkvpool/*.c))
ATTN_OBJ := $(call obj,$(wildcard kernels/*.c))
# what stays, decided by the same objects in the daemon and in kvctl replay
POLICY_OBJ := $(call obj,$(wildcard daemon/policy_*.c))
KVCTL_OBJ := $(call obj,$(wildcard client/kvctl/*.c)) $(POLICY_OBJ)
EXPORTER_OBJ := $(call obj,$(wildcard client/kvexporter/*.c))
ENGINE_OBJ := $(call obj,$(wildcard client/kvengine/*.c))
COLD_OBJ := $(call obj,$(wildcard client/kvcold/*.c))

PROGRAMS := $(BUILD)/kvpoold $(BUILD)/kvctl $(BUILD)/kvengine $(BUILD)/kvpool-exporter $(BUILD)/kvpool-cold
LIBRARIES := $(BUILD)/libkvpool.so $(BUILD)/libkvattn.so $(BUILD)/libkvpool.a $(BUILD)/libkvattn.a
UNIT_TESTS := $(patsubst tests/unit/%.c,$(BUILD)/test/%,$(wildcard tests/unit/test_*.c))
SYSTEM_TESTS := $(patsubst tests/system/%.c,$(BUILD)/test/%,$(wildcard tests/system/test_*.c))
UNIT_HELPERS := $(filter-out tests/unit/test_% tests/unit/race_%,$(wildcard tests/unit/*.c))
SYSTEM_HELPERS := $(filter-out tests/system/test_% tests/system/prog_%,$(wildcard tests/system/*.c))
SYSTEM_PROGRAMS := $(patsubst tests/system/%.c,$(BUILD)/test/%,$(wildcard tests/system/prog_*.c))
BENCHES := $(patsubst tests/bench/%.c,$(BUILD)/kvbench-%,$(wildcard tests/bench/*.c))
FUZZERS := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
REPLAYS := $(patsubst tests/fuzz/fuzz_%.c,$(BUILD)/fuzz/replay_%,$(wildcard tests/fuzz/fuzz_*.c))
SOURCES := $(wildcard daemon/*.[ch] include/*.h client/*/*.[ch] kernels/*.[ch] tests/*/*.[ch])
MANUALS := $(wildcard daemon/*.8 client/*/*.1 client/*/*.3 client/*/*.7 kernels/*.3)

.PHONY: all
all: $(PROGRAMS) $(LIBRARIES) ## build everything (default)

# what is being made, one short line each; V=1 shows the commands, -s nothing
Q := $(if $(V),,@)
note = $(if $(V)$(findstring s,$(filter-out --%,$(firstword -$(MAKEFLAGS)))),,@printf '  %-5s %s\n' $(1) $(2))

# ---- objects ----

# Everything depends on the flags it was built with and every link on the list of files, so that neither a change of
# flags nor a file that came or went leaves something stale behind.
.PHONY: FORCE
$(BUILD)/obj/flags: FORCE
	@mkdir -p $(@D); echo $(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) | cmp -s - $@ || echo $(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) >$@
$(BUILD)/obj/files: FORCE
	@mkdir -p $(@D); echo $(SOURCES) | cmp -s - $@ || echo $(SOURCES) >$@

$(BUILD)/obj/client/libkvpool/%.o $(BUILD)/obj/kernels/%.o: VISIBILITY := -fvisibility=hidden
$(BUILD)/obj/%.o: %.c $(BUILD)/obj/flags
	@mkdir -p $(@D)
	$(call note,CC,$<)
	$(Q)$(CC) $(ALL_CFLAGS) $(VISIBILITY) -I. -MMD -MP -c $< -o $@
# the daemon, and what tests it, with points at which a test makes things fail
$(BUILD)/fault/%.o: %.c $(BUILD)/obj/flags
	@mkdir -p $(@D)
	$(call note,CC,$<)
	$(Q)$(CC) $(ALL_CFLAGS) -DKVP_FAULT -I. -MMD -MP -c $< -o $@
.SECONDARY:
.DELETE_ON_ERROR:

# ---- libraries and programs ----

objects = $(filter %.o,$^)
define archive
@mkdir -p $(@D)
$(call note,AR,$@)
$(Q)rm -f $@ && $(AR) rcs $@ $(objects)
endef

# nodelete: its threads and fork handlers outlive a dlclose()
$(BUILD)/libkvpool.so.$(SOVERSION): $(POOL_OBJ) $(BUILD)/obj/files
	$(call note,LD,$@)
	$(Q)$(CC) -Wl,-z,nodelete -shared $(ALL_LDFLAGS) -Wl,-soname,$(@F) $(if $(SANITIZE),,-Wl,-z,defs) $(objects) $(CLIENT_LIBS) -o $@
$(BUILD)/libkvattn.so.$(SOVERSION): $(ATTN_OBJ) $(BUILD)/obj/files
	$(call note,LD,$@)
	$(Q)$(CC) -shared $(ALL_LDFLAGS) -Wl,-soname,$(@F) $(if $(SANITIZE),,-Wl,-z,defs) $(objects) $(ATTN_LIBS) -o $@
$(BUILD)/lib%.so: $(BUILD)/lib%.so.$(SOVERSION)
	$(Q)ln -sf $(<F) $@
# what is hidden in the shared library is local in the static one: its inner names meet nobody else's
$(BUILD)/libkvpool.a: $(POOL_OBJ) $(BUILD)/obj/files
	@mkdir -p $(@D)
	$(Q)$(LD) -r $(objects) -o $(BUILD)/obj/libkvpool.o && objcopy --localize-hidden $(BUILD)/obj/libkvpool.o
	$(call note,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $(BUILD)/obj/libkvpool.o
$(BUILD)/libkvattn.a: $(ATTN_OBJ) $(BUILD)/obj/files
	$(archive)
# only for tests: everything of a program but its main, and what stands beside the tests
$(BUILD)/obj/daemon.a: $(call no_main,$(DAEMON_OBJ)) $(BUILD)/obj/files
	$(archive)
$(BUILD)/fault/daemon.a: $(call no_main,$(DAEMON_FAULT_OBJ)) $(BUILD)/obj/files
	$(archive)
$(BUILD)/obj/kvctl.a: $(call no_main,$(KVCTL_OBJ)) $(BUILD)/obj/files
	$(archive)
$(BUILD)/obj/kvengine.a: $(call no_main,$(ENGINE_OBJ)) $(BUILD)/obj/files
	$(archive)
$(BUILD)/obj/unit.a: $(call obj,$(UNIT_HELPERS)) $(BUILD)/obj/files
	$(archive)
$(BUILD)/fault/unit.a: $(call fault,$(UNIT_HELPERS)) $(BUILD)/obj/files
	$(archive)
$(BUILD)/obj/system.a: $(call obj,$(SYSTEM_HELPERS)) $(BUILD)/obj/files
	$(archive)

$(BUILD)/kvpoold: $(DAEMON_OBJ) $(BUILD)/obj/files
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $(objects) $(DAEMON_LIBS) -o $@
$(BUILD)/kvpoold-fault: $(DAEMON_FAULT_OBJ) $(BUILD)/obj/files
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $(objects) $(DAEMON_LIBS) -o $@
$(BUILD)/kvctl: $(KVCTL_OBJ) $(BUILD)/libkvpool.so $(BUILD)/libkvattn.so $(BUILD)/obj/files
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $(RPATH) $(objects) -L$(BUILD) -lkvpool -lkvattn $(KVCTL_LIBS) -o $@
$(BUILD)/kvengine: $(ENGINE_OBJ) $(BUILD)/libkvpool.so $(BUILD)/libkvattn.so $(BUILD)/obj/files
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $(RPATH) $(objects) -L$(BUILD) -lkvpool -lkvattn $(ENGINE_LIBS) -o $@

$(BUILD)/kvpool-cold: $(COLD_OBJ) $(BUILD)/libkvpool.so $(BUILD)/libkvattn.so $(BUILD)/obj/files
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $(RPATH) $(objects) -L$(BUILD) -lkvpool -lkvattn -o $@

# what it reads of a pool is kvctl's
$(BUILD)/kvpool-exporter: $(EXPORTER_OBJ) $(BUILD)/obj/kvctl.a $(BUILD)/obj/files
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $(objects) $(BUILD)/obj/kvctl.a $(EXPORTER_LIBS) -o $@

# ---- tests: what one links follows from its name; those of the daemon link the daemon with fault points ----

CLIENT_A := $(BUILD)/libkvpool.a $(BUILD)/libkvattn.a
define test_program
@mkdir -p $(@D)
$(call note,LD,$@)
$(Q)$(CC) $(ALL_LDFLAGS) $(filter %.o %.a,$^) $(1) $(TEST_LIBS) -o $@
endef
$(BUILD)/test/test_client_%: $(BUILD)/obj/tests/unit/test_client_%.o $(BUILD)/obj/unit.a $(CLIENT_A)
	$(call test_program,$(CLIENT_LIBS) $(ATTN_LIBS))
$(BUILD)/test/test_attn_%: $(BUILD)/obj/tests/unit/test_attn_%.o $(BUILD)/obj/unit.a $(BUILD)/libkvattn.a
	$(call test_program,$(ATTN_LIBS))
$(BUILD)/test/test_kvctl_%: $(BUILD)/obj/tests/unit/test_kvctl_%.o $(BUILD)/obj/kvctl.a $(BUILD)/obj/unit.a $(CLIENT_A)
	$(call test_program,$(KVCTL_LIBS) $(ATTN_LIBS))
# the daemon's decisions beside those of kvctl replay; what both have is the daemon's
$(BUILD)/test/test_replay_%: $(BUILD)/fault/tests/unit/test_replay_%.o $(BUILD)/fault/unit.a $(BUILD)/fault/daemon.a $(BUILD)/obj/kvctl.a
	$(call test_program,$(DAEMON_LIBS) $(call pkg,jansson))
$(BUILD)/test/test_engine_%: $(BUILD)/obj/tests/unit/test_engine_%.o $(BUILD)/obj/kvengine.a $(BUILD)/obj/unit.a $(CLIENT_A)
	$(call test_program,$(ENGINE_LIBS) $(ATTN_LIBS))
# both sides in one program: of the library only what such a test calls is seen, the rest would clash with the daemon
$(BUILD)/obj/race.o: $(POOL_OBJ) $(BUILD)/obj/tests/unit/race_reader.o
	$(Q)$(LD) -r $(objects) -o $@ && objcopy --keep-global-symbol=race_read --keep-global-symbol=race_find --keep-global-symbol=race_arrive $@
$(BUILD)/test/test_race_%: $(BUILD)/fault/tests/unit/test_race_%.o $(BUILD)/obj/race.o $(BUILD)/fault/unit.a $(BUILD)/fault/daemon.a
	$(call test_program,$(DAEMON_LIBS) $(CLIENT_LIBS))
$(BUILD)/test/%: $(BUILD)/fault/tests/unit/%.o $(BUILD)/fault/unit.a $(BUILD)/fault/daemon.a
	$(call test_program,$(DAEMON_LIBS))
$(BUILD)/test/%: $(BUILD)/obj/tests/system/%.o $(BUILD)/obj/system.a $(CLIENT_A)
	$(call test_program,$(call pkg,uuid jansson libsodium) $(ATTN_LIBS))

# kvctl replay's part of it is kvctl's
$(BUILD)/test/test_traced: $(BUILD)/obj/tests/system/test_traced.o $(BUILD)/obj/system.a $(BUILD)/obj/kvctl.a $(CLIENT_A)
	$(call test_program,$(call pkg,uuid) $(KVCTL_LIBS) $(ATTN_LIBS))

# One file a benchmark of its own, peers that are not installed simply not built.
$(BUILD)/test/prog_%: $(BUILD)/obj/tests/system/prog_%.o $(BUILD)/libkvpool.a $(BUILD)/libkvattn.a
	@mkdir -p $(@D)
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -lsodium -lm -o $@
$(BUILD)/kvbench-%: $(BUILD)/obj/tests/bench/%.o $(CLIENT_A)
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $(filter %.o %.a,$^) $(call pkg,libsodium lmdb hiredis) $(ATTN_LIBS) -o $@
$(BUILD)/kvbench-quality: $(BUILD)/obj/tests/bench/quality.o $(BUILD)/obj/kvengine.a $(CLIENT_A)
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $(filter %.o %.a,$^) $(ENGINE_LIBS) $(ATTN_LIBS) -o $@
# by itself: peers are looked for when it runs
$(BUILD)/kvbench-attn: $(BUILD)/obj/tests/bench/attn.o $(BUILD)/libkvattn.a
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $(filter %.o %.a,$^) $(ATTN_LIBS) -o $@
# metadata only: neither daemon nor library
$(BUILD)/kvbench-policy: $(BUILD)/obj/tests/bench/policy.o $(POLICY_OBJ)
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $(filter %.o %.a,$^) -lm -o $@
# what a device takes for records, whoever moves them
$(BUILD)/kvbench-ring: $(BUILD)/obj/tests/bench/ring.o
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $(filter %.o,$^) $(call pkg,liburing) -o $@
PEERS_HERE := $(if $(wildcard /usr/include/lmdb.h),$(if $(wildcard /usr/include/hiredis/hiredis.h),yes))
$(BUILD)/obj/tests/bench/%.o: ALL_CFLAGS += -I/usr/include/hiredis

# preloaded, so never with a sanitizer in it
$(BUILD)/test/wallclock.so: tests/data/wallclock.c
	@mkdir -p $(@D)
	$(call note,LD,$@)
	$(Q)$(CC) -std=gnu17 -D_GNU_SOURCE $(WARN) -O2 -fPIC -shared $< -o $@ -ldl
$(BUILD)/test/test_client_events: | $(BUILD)/test/wallclock.so
$(BUILD)/test/test_cold: | $(BUILD)/kvpool-cold

.PHONY: tests
tests: all $(UNIT_TESTS) $(SYSTEM_TESTS) $(SYSTEM_PROGRAMS) $(BUILD)/test/wallclock.so $(if $(wildcard daemon/main.c),$(BUILD)/kvpoold-fault) $(if $(PEERS_HERE),$(BENCHES))

# ---- packages ----

# $(call install_missing,PACKAGES): quick and without network when all are there
define install_missing
@missing=`dpkg-query -W -f='$${Package} $${Status}\n' $(1) 2>/dev/null | awk '/ok installed/ {print $$1}' | sort >/tmp/.kvp-have.$$$$; \
	printf '%s\n' $(1) | sort | comm -23 - /tmp/.kvp-have.$$$$; rm -f /tmp/.kvp-have.$$$$`; \
test -z "$$missing" || if [ `id -u` = 0 ]; then \
	echo "installing Debian packages:" $$missing; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq && apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 $$missing >/dev/null; \
else echo "Debian packages are missing; as root: apt-get install --no-install-recommends" $$missing >&2; exit 1; fi
endef
.PHONY: deps deps-build deps-fuzz deps-lint
deps: ## install the Debian packages that building and testing need (as root), or name them
	$(call install_missing,$(BUILD_PACKAGES) $(CHECK_PACKAGES))
deps-build:
	$(call install_missing,$(BUILD_PACKAGES))
deps-fuzz:
	$(call install_missing,$(BUILD_PACKAGES) $(FUZZ_PACKAGES))
deps-lint:
	$(call install_missing,$(BUILD_PACKAGES) $(CHECK_PACKAGES) $(LINT_PACKAGES))
deps-bench:
	$(call install_missing,$(BUILD_PACKAGES) $(PEER_PACKAGES))

# ---- the targets a person types; each ends with one summary line and a true exit status ----

JOBS ?= $(shell nproc)
sub = @+$(MAKE) --no-print-directory -s $(if $(filter -j%,$(MAKEFLAGS)),,-j$(JOBS))

.PHONY: demo check asan tsan coverage coverage-build fuzz fuzz-seeds mutants kills endurance model bench bench-attn check-vm check-engines chaos
demo: deps-build ## engines in several processes share one pool, for a person to watch
	$(sub) all
	@BUILD=$(BUILD) tests/system/demo

check: deps ## build everything, run all tests
	$(sub) tests fuzz-seeds
	@BUILD=$(BUILD) tests/run $(TESTS)

asan: deps ## all programs under AddressSanitizer and UndefinedBehaviorSanitizer
	$(sub) tests BUILD=$(BUILD)/asan OPT='-O1 -fno-omit-frame-pointer' \
		SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=undefined'
	@BUILD=$(BUILD)/asan tests/run --programs --patience=3 $(TESTS)

tsan: deps ## all programs under ThreadSanitizer
	$(sub) tests BUILD=$(BUILD)/tsan OPT='-O1 -fno-omit-frame-pointer -Wno-tsan' SANITIZE='-fsanitize=thread'
	@BUILD=$(BUILD)/tsan tests/run --programs --no-aslr --patience=5 $(TESTS)

# counts of client/, daemon/ and include/ only (^[cdi]); what is killed writes them too (tests/coverage/dump.c).
# The seeds are replayed by this build: under $(BUILD)/coverage/seeds lies what lies beside it.
COVERAGE := $(BUILD)/coverage
COVERAGE_WRAP := $(foreach f,kill raise _exit prctl,-Wl,--wrap=$(f))
coverage: coverage-build ## which lines of daemon/ and client/ all tests run, as a table (fails below 90 %)
	@BUILD=$(COVERAGE) tests/coverage/run $(TESTS)
coverage-build: deps
	@mkdir -p $(COVERAGE)/fuzz && ln -sfn . $(COVERAGE)/seeds
	@$(CC) -std=gnu17 -D_GNU_SOURCE $(WARN) -O1 -g -fPIC -c tests/coverage/dump.c -o $(COVERAGE)/dump.o
	$(sub) tests replays BUILD=$(COVERAGE) CC=gcc OPT='-O1 -fno-inline' LDFLAGS='$(COVERAGE)/dump.o $(COVERAGE_WRAP) -Wl,-z,nodelete' \
		SANITIZE='--coverage -fprofile-update=prefer-atomic -fprofile-filter-files=^[cdi]'

SECONDS ?= 60
fuzz: deps-fuzz ## fuzz each parser of foreign bytes for SECONDS=60 (clang, libFuzzer)
	$(sub) fuzzers BUILD=$(BUILD)/clang-fuzz CC=clang OPT=-O1 \
		SANITIZE='-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined'
	@BUILD=$(BUILD)/clang-fuzz tests/fuzz/run $(SECONDS)

# the seeds once more, by gcc and without a fuzzer, for make check
fuzz-seeds:
	$(sub) replays BUILD=$(BUILD)/seeds OPT=-O1 SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=undefined'
.PHONY: fuzzers replays
fuzzers: $(FUZZERS)
replays: $(REPLAYS)
# fuzz_client_*: the library's parsers; all others: the daemon's
fuzz_libs = $(if $(findstring _client_,$(1)),$(BUILD)/libkvpool.a,$(BUILD)/obj/daemon.a)
$(BUILD)/fuzz/fuzz_%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(BUILD)/obj/daemon.a $(BUILD)/libkvpool.a
	@mkdir -p $(@D)
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer $< $(call fuzz_libs,$@) $(DAEMON_LIBS) -o $@
$(BUILD)/fuzz/replay_%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(BUILD)/obj/tests/fuzz/replay.o $(BUILD)/obj/daemon.a $(BUILD)/libkvpool.a
	@mkdir -p $(@D)
	$(call note,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $(filter %.o,$^) $(call fuzz_libs,$<) $(DAEMON_LIBS) -o $@

mutants: deps ## take out one safety line at a time: a test must fail each time
	@BUILD=$(BUILD) tests/mutants/run $(MUTANTS)

CLIENTS ?= 10000
DAEMONS ?= 200
kills: deps-build ## CLIENTS=10000 random SIGKILLs of clients and DAEMONS=200 of the daemon, under load
	$(sub) tests
	@BUILD=$(BUILD) tests/system/kills $(CLIENTS) $(DAEMONS)

READS ?= 1000000000
KILLS ?= 10000
HOSTS ?= 1
endurance: deps-build ## READS=1000000000 of small blocks, each compared, over KILLS=10000 of the daemon (HOSTS=1 pools side by side, SEED= repeats)
	$(sub) tests
	@BUILD=$(BUILD) tests/system/endurance $(if $(SEED),--seed $(SEED)) --hosts $(HOSTS) $(READS) $(KILLS)

model: ## check the pin protocol's model with spin (RUNS=all: larger ones too)
	$(call install_missing,spin gcc libc6-dev)
	@tests/model/run $(RUNS)

bench: deps-bench ## kvctl bench: pin, publish, share, spill, start and attention, beside peers, as a table
	$(sub) all $(BENCHES)
	@tests/bench/run $(BUILD)

bench-attn: deps-build ## attention beside the machine's read ceiling, sgemm, PyTorch and ggml (TOKENS=32768 HUGE=1 PEER_PYTHON= PEER_GGML=)
	$(sub) all $(BUILD)/kvbench-attn
	@$(BUILD)/kvctl bench attn --self
	@$(BUILD)/kvbench-attn $(if $(HUGE),--huge) $(TOKENS)
	@BUILD=$(BUILD) tests/bench/peers_attn $(TOKENS)

.PHONY: bench-policy
bench-policy: deps-build ## what a decision of the learned order costs (BLOCKS=10000000; 2 GB), and what is asked of it on traces, where they lie beside
	$(sub) $(BUILD)/kvbench-policy $(BUILD)/kvctl
	@$(BUILD)/kvbench-policy $(BLOCKS)
	@test ! -d ../shared/traces || tests/bench/policies targets $(BUILD)/kvctl ../shared/traces

.PHONY: bench-quality
bench-quality: deps-build ## what each type of K and V, and attention to a part of the keys, costs in quality
	$(sub) $(BUILD)/kvbench-quality
	@$(BUILD)/kvbench-quality

check-vm: deps ## boot virtual machines with systemd and run kvpool there as a service (root; QEMU; VM=nodes: that part)
	$(sub) all $(SYSTEM_PROGRAMS)
	@BUILD=$(BUILD) tests/vm/check $(VM)

# Only what knows nothing of the pool: kernels and their tests, with as much of cmocka as they use.
ARM := $(BUILD)/arm
ARM_TESTS := test_attn_numeric test_attn_block test_attn_reference test_attn_promise
.PHONY: check-arm
check-arm: deps-build ## libkvattn for 64-bit ARM, and its numeric tests under an emulator
	$(call install_missing,gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
	$(sub) $(addprefix $(ARM)/test/,$(ARM_TESTS)) $(ARM)/libkvattn.so BUILD=$(ARM) CC=aarch64-linux-gnu-gcc \
		AR=aarch64-linux-gnu-ar TEST_LIBS=-lm CFLAGS='-O2 -g -Itests/arm'
	@BUILD=$(ARM) tests/arm/run

check-engines: deps ## the Python package in transformers, LMCache, llama.cpp, SGLang and vLLM of PyPI (network, gigabytes)
	$(sub) all
	@BUILD=$(BUILD) tests/engines/run
ROUNDS ?= 2
.PHONY: rolling clock
rolling: deps-build ## ROUNDS=2 of changes to a later minor version and back, and from 1.0 and back, under load, in mid-token
	$(sub) tests
	@BUILD=$(BUILD) tests/system/rolling --rounds $(ROUNDS)
clock: deps-build ## the wall clock jumps by a day, back and forth, under load
	$(sub) tests
	@BUILD=$(BUILD) tests/system/clock
DURATION ?= 180
chaos: deps-build ## DURATION=180 seconds of faults of every kind, with several tenants (SEED= repeats, OTHER=kvpoold: upgrades to it)
	$(sub) tests
	@BUILD=$(BUILD) tests/system/chaos $(if $(SEED),--seed $(SEED)) $(addprefix --other ,$(OTHER)) $(DURATION)

# The C libraries inside, libsodium in them, so that an engine's host needs nothing but Python; the licences of both with them.
WHEEL := $(BUILD)/wheel
.PHONY: wheel
wheel: deps-build ## the Python package with the C libraries inside: $(BUILD)/wheel/kvpool-*.whl
	$(call install_missing,$(WHEEL_PACKAGES))
	$(sub) all
	@rm -rf $(WHEEL) && mkdir -p $(WHEEL) && cp -r client/python $(WHEEL)/src && mkdir -p $(WHEEL)/src/kvpool/lib
	@$(CC) -Wl,-z,nodelete -shared -pthread -Wl,-soname,libkvpool.so.$(SOVERSION) -Wl,--exclude-libs,ALL \
		$(POOL_OBJ) -l:libsodium.a -o $(WHEEL)/src/kvpool/lib/libkvpool.so.$(SOVERSION)
	@cp $(BUILD)/libkvattn.so.$(SOVERSION) $(WHEEL)/src/kvpool/lib/
	@cp LICENSE $(WHEEL)/src/ && cp /usr/share/doc/libsodium-dev/copyright $(WHEEL)/src/LICENSE.libsodium
	@/usr/bin/python3 -m pip wheel -q --no-deps --no-build-isolation --no-index -w $(WHEEL) $(WHEEL)/src
	@rm -rf $(WHEEL)/src && echo "wheel: ok $$(ls $(WHEEL)/*.whl)"

# The programs linked anew without a path of their own to the libraries: dpkg knows where those are.
DEB := $(BUILD)/deb
MULTIARCH = $(shell $(CC) -print-multiarch)
.PHONY: deb
deb: deps-build ## Debian packages of this version: $(BUILD)/deb/*.deb
	$(call install_missing,dpkg-dev)
	$(sub) all
	@rm -rf $(DEB) && mkdir -p $(DEB)/build && cp -a $(BUILD)/obj $(DEB)/build/
	$(sub) install BUILD=$(DEB)/build RPATH= DESTDIR=$(DEB)/stage PREFIX=/usr LIBDIR=/usr/lib/$(MULTIARCH) SYSTEMDDIR=/usr/lib >/dev/null
	@systemd/debian/build $(DEB)/stage $(DEB)/out $(VERSION) && mv $(DEB)/out/*.deb $(DEB)/ && rm -rf $(DEB)/build $(DEB)/stage $(DEB)/out
	@echo "deb: ok $$(ls $(DEB)/*.deb | xargs)"

# ---- install ----

# a unit or .pc file with this installation's paths
edit = sed -e 's|/usr/local/sbin|$(SBINDIR)|g; s|/usr/local/bin|$(BINDIR)|g; s|/usr/local/lib|$(LIBDIR)|g' \
	-e 's|/usr/local/include|$(INCLUDEDIR)|g; s|@VERSION@|$(VERSION)|g'
UNITS := $(notdir $(wildcard systemd/*.service systemd/*.socket))
D = $(DESTDIR)
define put_edited
$(edit) $(1) >$(BUILD)/obj/edited && install -m 644 $(BUILD)/obj/edited $(2)

endef

# what install makes and a system need not have, the inner ones first; of a prefix of its own all
OWN_DIRS = $(SYSCONFDIR)/kvpool $(LIBDIR)/pkgconfig $(sort $(foreach m,$(MANUALS),$(MANDIR)/man$(subst .,,$(suffix $(m))))) \
	$(addprefix $(SYSTEMDDIR)/,systemd/system systemd sysusers.d tmpfiles.d) \
	$(if $(filter-out /usr /usr/local,$(PREFIX))$(D),$(MANDIR) $(PREFIX)/share $(BINDIR) $(SBINDIR) $(INCLUDEDIR) $(LIBDIR) $(filter-out $(LIBDIR),$(SYSTEMDDIR)) $(PREFIX)) \
	$(if $(D),$(SYSCONFDIR) $(patsubst %/,%,$(dir $(PREFIX))))
.PHONY: install uninstall
install: all ## install programs, libraries, headers, manuals and units (PREFIX=/usr/local DESTDIR=)
	install -d $(D)$(BINDIR) $(D)$(SBINDIR) $(D)$(LIBDIR)/pkgconfig $(D)$(INCLUDEDIR) $(D)$(SYSCONFDIR)/kvpool \
		$(D)$(SYSTEMDDIR)/systemd/system $(D)$(SYSTEMDDIR)/sysusers.d $(D)$(SYSTEMDDIR)/tmpfiles.d
	install -m 755 $(BUILD)/kvpoold $(D)$(SBINDIR)/
	install -m 755 $(BUILD)/kvctl $(BUILD)/kvengine $(BUILD)/kvpool-exporter $(BUILD)/kvpool-cold $(D)$(BINDIR)/
	install -m 644 $(BUILD)/libkvpool.so.$(SOVERSION) $(BUILD)/libkvattn.so.$(SOVERSION) $(BUILD)/libkvpool.a $(BUILD)/libkvattn.a $(D)$(LIBDIR)/
	ln -sf libkvpool.so.$(SOVERSION) $(D)$(LIBDIR)/libkvpool.so
	ln -sf libkvattn.so.$(SOVERSION) $(D)$(LIBDIR)/libkvattn.so
	install -m 644 include/kvpool.h include/kvattn.h $(D)$(INCLUDEDIR)/
	$(call put_edited,client/libkvpool/kvpool.pc.in,$(D)$(LIBDIR)/pkgconfig/kvpool.pc)
	$(call put_edited,kernels/kvattn.pc.in,$(D)$(LIBDIR)/pkgconfig/kvattn.pc)
	$(foreach m,$(MANUALS),install -D -m 644 $(m) $(D)$(MANDIR)/man$(subst .,,$(suffix $(m)))/$(notdir $(m)) &&) true
	$(foreach u,$(UNITS),$(call put_edited,systemd/$(u),$(D)$(SYSTEMDDIR)/systemd/system/$(u)))
	install -m 644 systemd/kvpool.sysusers $(D)$(SYSTEMDDIR)/sysusers.d/kvpool.conf
	install -m 644 systemd/kvpool.tmpfiles $(D)$(SYSTEMDDIR)/tmpfiles.d/kvpool.conf
	test -e $(D)$(SYSCONFDIR)/kvpool/kvpoold.conf || install -m 644 systemd/kvpoold.conf $(D)$(SYSCONFDIR)/kvpool/kvpoold.conf
	@test -n "$(D)" || test `id -u` != 0 || ldconfig
	@test -n "$(D)" || echo "installed; to run it as a service: systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload && systemctl enable --now kvpoold.socket kvpoold-admin.socket kvpoold"

uninstall: ## remove what install put there; a changed configuration stays
	rm -f $(D)$(SBINDIR)/kvpoold $(D)$(BINDIR)/kvctl $(D)$(BINDIR)/kvengine $(D)$(BINDIR)/kvpool-exporter $(D)$(BINDIR)/kvpool-cold
	rm -f $(foreach l,kvpool kvattn,$(D)$(LIBDIR)/lib$(l).so $(D)$(LIBDIR)/lib$(l).so.$(SOVERSION) $(D)$(LIBDIR)/lib$(l).a $(D)$(LIBDIR)/pkgconfig/$(l).pc)
	rm -f $(D)$(INCLUDEDIR)/kvpool.h $(D)$(INCLUDEDIR)/kvattn.h
	rm -f $(foreach m,$(MANUALS),$(D)$(MANDIR)/man$(subst .,,$(suffix $(m)))/$(notdir $(m)))
	rm -f $(foreach u,$(UNITS),$(D)$(SYSTEMDDIR)/systemd/system/$(u)) $(D)$(SYSTEMDDIR)/sysusers.d/kvpool.conf $(D)$(SYSTEMDDIR)/tmpfiles.d/kvpool.conf
	@if cmp -s systemd/kvpoold.conf $(D)$(SYSCONFDIR)/kvpool/kvpoold.conf; then rm -f $(D)$(SYSCONFDIR)/kvpool/kvpoold.conf; \
	elif [ -e $(D)$(SYSCONFDIR)/kvpool/kvpoold.conf ]; then echo "kept: $(D)$(SYSCONFDIR)/kvpool/kvpoold.conf, it was changed"; fi
	@rmdir --ignore-fail-on-non-empty $(wildcard $(addprefix $(D),$(OWN_DIRS)))

# ---- house ----

.PHONY: format format-check lint clean help
# tests/data: first.c is laid out for the README, pinned.h is made by a script
FORMATTED := $(filter-out tests/data/%,$(SOURCES))
format: ## format the C sources
	clang-format -i $(FORMATTED)
format-check: ## are the C sources formatted?
	@clang-format --dry-run -Werror $(FORMATTED) && echo "format: $(words $(FORMATTED)) files as .clang-format has them"
lint: deps-lint ## a build by clang, the manuals, and what clang-tidy, cppcheck and gcc -fanalyzer find (FILES='FILE...')
	$(sub) tests BUILD=$(BUILD)/clang CC=clang
	@for m in $(MANUALS); do groff -man -Tutf8 -ww -z $$m 2>&1; done | { ! grep .; }
	@BUILD=$(BUILD) JOBS=$(JOBS) tests/lint/run $(FILES)
clean: ## remove $(BUILD)
	rm -rf $(BUILD)
help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

-include $(shell find $(BUILD)/obj $(BUILD)/fault -name '*.d' 2>/dev/null)
