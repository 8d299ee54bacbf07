# Builds the time quota's client library, where there is a C compiler. Included by the Makefile; CC, OUT and
# QUOTA_CFLAGS may be given (another compiler, a sanitizer).
QUOTA_OUT ?= out/quota
QUOTA_SOURCES := $(sort $(wildcard native/quota/*.c))
QUOTA_HEADERS := $(wildcard native/quota/*.h)
QUOTA_FLAGS := -std=c11 -O2 -g -fPIC -fvisibility=hidden -foptimize-sibling-calls -ftls-model=initial-exec \
	-fstack-protector-strong -fno-strict-aliasing -U_FORTIFY_SOURCE \
	-Wall -Wextra -Wshadow -Wconversion -Wformat=2 -Wundef -Wwrite-strings -Wno-missing-field-initializers -Werror
# What is linked to is libc alone, and of that only what containers of ten years ago have, and those with musl: it has no
# checked variants of printf, so there is no _FORTIFY_SOURCE (docs/time-quota.md).
QUOTA_LINK := -shared -Wl,-soname,libsluice-quota.so -Wl,-z,relro,-z,now,-z,noexecstack,-z,defs -Wl,--as-needed

$(QUOTA_OUT)/libsluice-quota.so: $(QUOTA_SOURCES) $(QUOTA_HEADERS) native/quota/build.mk
	@mkdir -p $(@D)
	$(CC) $(QUOTA_FLAGS) $(QUOTA_CFLAGS) $(QUOTA_LINK) -o $@.new $(QUOTA_SOURCES)
	mv $@.new $@
