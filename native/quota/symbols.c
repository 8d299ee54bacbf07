#define _GNU_SOURCE
#include "symbols.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct tables {
    const ElfW(Sym) *symbols;
    const char *names;
    const uint32_t *gnu_hash;
    const uint32_t *hash;
};

struct wanted {
    const char *file, *name;
    void *found;
};

/* The loader has put addresses into the dynamic section, except in objects that it maps read-only (the vDSO). */
static const void *address(ElfW(Addr) base, ElfW(Addr) value)
{
    return (const void *)(value < base ? base + value : value);
}

static bool find_tables(const struct dl_phdr_info *object, struct tables *tables)
{
    const ElfW(Dyn) *entry = NULL;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            entry = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    if (entry == NULL) return false;
    memset(tables, 0, sizeof *tables);
    for (; entry->d_tag != DT_NULL; entry++) {
        const void *value = address(object->dlpi_addr, entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB) tables->symbols = value;
        if (entry->d_tag == DT_STRTAB) tables->names = value;
        if (entry->d_tag == DT_GNU_HASH) tables->gnu_hash = value;
        if (entry->d_tag == DT_HASH) tables->hash = value;
    }
    return tables->symbols != NULL && tables->names != NULL;
}

static bool is_it(const struct tables *tables, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &tables->symbols[index];
    return symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 && (symbol->st_info & 0xf) == STT_FUNC &&
           strcmp(tables->names + symbol->st_name, name) == 0;
}

/* DT_GNU_HASH: buckets, then chains whose entries end with a set lowest bit (the Bloom filter is passed over). */
static uint32_t by_gnu_hash(const struct tables *tables, const char *name)
{
    const uint32_t *table = tables->gnu_hash;
    uint32_t buckets = table[0], first = table[1], words = table[2], hash = 5381;
    const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)(table + 4) + words);
    const uint32_t *chain = bucket + buckets;
    for (const char *c = name; *c != '\0'; c++) hash = 33 * hash + (unsigned char)*c;
    if (buckets == 0) return 0;
    uint32_t index = bucket[hash % buckets];
    if (index < first) return 0;
    for (;; index++) {
        uint32_t entry = chain[index - first];
        if ((entry | 1) == (hash | 1) && is_it(tables, index, name)) return index;
        if (entry & 1) return 0;
    }
}

/* DT_HASH, which has as many chains as there are symbols. */
static uint32_t by_hash(const struct tables *tables, const char *name)
{
    for (uint32_t index = 1; index < tables->hash[1]; index++)
        if (is_it(tables, index, name)) return index;
    return 0;
}

static int look_in(struct dl_phdr_info *object, size_t size, void *data)
{
    struct wanted *wanted = data;
    struct tables tables;
    (void)size;
    const char *path = object->dlpi_name != NULL ? object->dlpi_name : "";
    const char *slash = strrchr(path, '/');
    if (strncmp(slash != NULL ? slash + 1 : path, wanted->file, strlen(wanted->file)) != 0) return 0;
    if (!find_tables(object, &tables)) return 0;
    const char *here = (const char *)&look_in;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const char *begin = (const char *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
        if (object->dlpi_phdr[i].p_type == PT_LOAD && here >= begin && here < begin + object->dlpi_phdr[i].p_memsz)
            return 0;
    }
    uint32_t index = tables.gnu_hash != NULL ? by_gnu_hash(&tables, wanted->name)
                     : tables.hash != NULL   ? by_hash(&tables, wanted->name)
                                             : 0;
    if (index == 0) return 0;
    wanted->found = (void *)(object->dlpi_addr + tables.symbols[index].st_value);
    return 1;
}

void *symbol_in(const char *file, const char *name)
{
    struct wanted wanted = {file, name, NULL};
    dl_iterate_phdr(look_in, &wanted);
    return wanted.found;
}
