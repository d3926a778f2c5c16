// Runs kernels by themselves, each inside a function of its own name, so that callgrind can count each apart.
// No TVM here: kernels are plain C functions of addresses, and the pool below is the calling thread.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
  void *sync;
  int32_t tasks;
} environment;
typedef int (*task)(int id, environment *env, void *data);

int TVMBackendParallelLaunch(task run, void *data, int count) {
  environment env = {NULL, 1};
  (void)count;
  return run(0, &env, data);
}

// A file of bytes at a 64-byte aligned address.
static void *load(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) {
    fprintf(stderr, "driver: expected a file %s, got none\n", path);
    exit(1);
  }
  fseek(file, 0, SEEK_END);
  size_t size = (size_t)ftell(file);
  rewind(file);
  char *data = aligned_alloc(64, (size + 63) / 64 * 64 + 64);
  if (!data || fread(data, 1, size, file) != size) exit(1);
  fclose(file);
  return data;
}

#include "cases.inc"
