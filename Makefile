# kvpool: `make demo` shows it, `make check` builds and tests it, `make help` lists the rest.
#
# One file, wildcards: a new .c in daemon/, client/*/, kernels/ or tests/*/ is built by itself.  Objects go to
# $(BUILD)/obj; another compiler or set of flags goes to another BUILD (make CC=clang BUILD=build/clang).

BUILD ?= build
PREFIX ?= /usr/local
DESTDIR ?=
CC ?= gcc
VERSION := 0.1
SOVERSION := 0

PACKAGES := gcc pkg-config liburing-dev uuid-dev libhwloc-dev libsodium-dev libxxhash-dev libjansson-dev libsystemd-dev \
	libinih-dev uthash-dev libcmocka-dev libopenblas-pthread-dev python3
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wcast-qual -Wvla -Werror
OPT ?= -O2
CFLAGS ?= $(OPT) -g
SANITIZE ?=
ALL_CFLAGS = -std=gnu17 -D_GNU_SOURCE $(WARN) $(CFLAGS) $(SANITIZE) -fPIC -pthread -Iinclude -MMD -MP
ALL_LDFLAGS = $(LDFLAGS) $(SANITIZE) -pthread -Wl,--as-needed
RPATH := -Wl,-rpath,'$$ORIGIN' -Wl,-rpath,'$$ORIGIN/../lib'

DAEMON_LIBS := -luring -luuid -lhwloc -lsodium -lxxhash -lsystemd -linih
CLIENT_LIBS := -lsodium
KVCTL_LIBS := -ljansson -lm
ENGINE_LIBS := -ljansson -lsodium -lm

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
DAEMON_OBJ := $(call obj,$(wildcard daemon/*.c))
POOL_OBJ := $(call obj,$(wildcard client/libkvpool/*.c))
ATTN_OBJ := $(call obj,$(wildcard kernels/*.c))
KVCTL_OBJ := $(call obj,$(wildcard client/kvctl/*.c))
ENGINE_OBJ := $(call obj,$(wildcard client/kvengine/*.c))
no_main = $(filter-out %/main.o,$(1))

PROGRAMS := $(BUILD)/kvpoold $(BUILD)/kvctl $(BUILD)/kvengine
LIBRARIES := $(BUILD)/libkvpool.so $(BUILD)/libkvattn.so $(BUILD)/libkvpool.a $(BUILD)/libkvattn.a
BENCHES := $(patsubst tests/bench/bench_%.c,$(BUILD)/kvbench-%,$(wildcard tests/bench/bench_*.c))
UNIT_TESTS := $(patsubst tests/unit/%.c,$(BUILD)/test/%,$(wildcard tests/unit/test_*.c))
SYSTEM_TESTS := $(patsubst tests/system/%.c,$(BUILD)/test/%,$(wildcard tests/system/test_*.c))
UNIT_HELPERS := $(call obj,$(filter-out tests/unit/test_%,$(wildcard tests/unit/*.c)))
SYSTEM_HELPERS := $(call obj,$(filter-out tests/system/test_%,$(wildcard tests/system/*.c)))

.PHONY: all
all: $(PROGRAMS) $(LIBRARIES) ## build everything (default)

# ---- libraries and programs ----

$(BUILD)/obj/client/libkvpool/%.o $(BUILD)/obj/kernels/%.o: VISIBILITY := -fvisibility=hidden
$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(VISIBILITY) -I$(<D) -c $< -o $@

$(BUILD)/libkvpool.so.$(SOVERSION): $(POOL_OBJ)
	$(CC) -shared $(ALL_LDFLAGS) -Wl,-soname,$(@F) -Wl,-z,defs $^ $(CLIENT_LIBS) -o $@
$(BUILD)/libkvattn.so.$(SOVERSION): $(ATTN_OBJ)
	$(CC) -shared $(ALL_LDFLAGS) -Wl,-soname,$(@F) -Wl,-z,defs $^ -lm -o $@
$(BUILD)/lib%.so: $(BUILD)/lib%.so.$(SOVERSION)
	ln -sf $(<F) $@
$(BUILD)/libkvpool.a: $(POOL_OBJ)
	rm -f $@ && ar rcs $@ $^
$(BUILD)/libkvattn.a: $(ATTN_OBJ)
	rm -f $@ && ar rcs $@ $^
# only for tests: everything of a program but its main
$(BUILD)/obj/daemon.a: $(call no_main,$(DAEMON_OBJ))
	rm -f $@ && ar rcs $@ $^
$(BUILD)/obj/kvctl.a: $(call no_main,$(KVCTL_OBJ))
	rm -f $@ && ar rcs $@ $^
$(BUILD)/obj/kvengine.a: $(call no_main,$(ENGINE_OBJ))
	rm -f $@ && ar rcs $@ $^

$(BUILD)/kvpoold: $(DAEMON_OBJ)
	$(CC) $(ALL_LDFLAGS) $^ $(DAEMON_LIBS) -o $@
$(BUILD)/kvctl: $(KVCTL_OBJ) $(BUILD)/libkvpool.so $(BUILD)/libkvattn.so
	$(CC) $(ALL_LDFLAGS) $(RPATH) $(KVCTL_OBJ) -L$(BUILD) -lkvpool -lkvattn $(KVCTL_LIBS) -o $@
$(BUILD)/kvengine: $(ENGINE_OBJ) $(BUILD)/libkvpool.so $(BUILD)/libkvattn.so
	$(CC) $(ALL_LDFLAGS) $(RPATH) $(ENGINE_OBJ) -L$(BUILD) -lkvpool -lkvattn $(ENGINE_LIBS) -o $@

# ---- tests: what a test links follows from its name ----

TEST_LIBS := -lcmocka -lsodium -lm
$(BUILD)/test/test_client_%: $(BUILD)/obj/tests/unit/test_client_%.o $(BUILD)/libkvpool.a $(BUILD)/libkvattn.a $(UNIT_HELPERS)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) $< $(UNIT_HELPERS) $(BUILD)/libkvpool.a $(BUILD)/libkvattn.a $(TEST_LIBS) -o $@
$(BUILD)/test/test_attn_%: $(BUILD)/obj/tests/unit/test_attn_%.o $(BUILD)/libkvattn.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) $^ $(TEST_LIBS) -o $@
$(BUILD)/test/test_kvctl_%: $(BUILD)/obj/tests/unit/test_kvctl_%.o $(BUILD)/obj/kvctl.a $(BUILD)/libkvpool.a $(BUILD)/libkvattn.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) $^ $(TEST_LIBS) $(KVCTL_LIBS) -o $@
$(BUILD)/test/test_engine_%: $(BUILD)/obj/tests/unit/test_engine_%.o $(BUILD)/obj/kvengine.a $(BUILD)/libkvpool.a $(BUILD)/libkvattn.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) $^ $(TEST_LIBS) $(ENGINE_LIBS) -o $@
$(BUILD)/test/%: $(BUILD)/obj/tests/unit/%.o $(BUILD)/obj/daemon.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) $^ $(TEST_LIBS) $(DAEMON_LIBS) -o $@
$(BUILD)/test/%: $(BUILD)/obj/tests/system/%.o $(SYSTEM_HELPERS) $(BUILD)/libkvpool.a $(BUILD)/libkvattn.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) $^ $(TEST_LIBS) -luuid -o $@
$(BUILD)/kvbench-%: $(BUILD)/obj/tests/bench/bench_%.o $(BUILD)/libkvpool.a $(BUILD)/libkvattn.a
	$(CC) $(ALL_LDFLAGS) $^ -lsodium -lm -o $@

.PHONY: demo check deps tests
tests: all $(UNIT_TESTS) $(SYSTEM_TESTS)

deps: ## install the Debian packages that are missing (as root), or name them
	@missing=`for p in $(PACKAGES); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done`; \
	test -z "$$missing" && exit 0; \
	if [ `id -u` = 0 ]; then apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing; \
	else echo "missing Debian packages: apt-get install" $$missing >&2; exit 1; fi

demo: deps ## engines in several processes share one pool, for a person to watch
	@$(MAKE) --no-print-directory -s all
	@BUILD=$(BUILD) tests/system/demo

check: deps ## build and run all tests
	@$(MAKE) --no-print-directory -s tests
	@BUILD=$(BUILD) tests/run

.PHONY: format format-check clean help
format: ## format the C sources
	clang-format -i $(wildcard daemon/*.[ch] include/*.h client/*/*.[ch] kernels/*.[ch] tests/*/*.[ch])
clean:
	rm -rf $(BUILD)
help: ## this list
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
