/*
 * Open MPI as a peer of `tributary bench allreduce`: one rank, started by mpirun as `openmpi_peer HOST PORT TOKEN`. It
 * connects to the coordinator, says `hello TOKEN RANK PID`, and then takes one command a line:
 *   turn BYTES ITERATIONS BURST VARIANT   times MPI_Allreduce (float32, sum) and answers `MICROSECONDS ok|wrong`;
 *                                         VARIANT is `in-place` or `separate` (two buffers)
 *   quit                                  ends the rank, as does the end of the connection
 * What it is not: the judge; the coordinator alternates the peers and compares them. Invariants: between turns it
 * sleeps in read() and takes no processor from others; only the calls are timed, and their result is checked.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <math.h>
#include <mpi.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define HUGE_PAGE (2ul << 20)

static int rank, size;
static float *input, *output;
static size_t capacity;

static void fail(const char *what) {
  perror(what);
  exit(1);
}

/* Small whole numbers that repeat after 8 elements; the other peers use the same. */
static float value(int of_rank, size_t index) {
  return (float)(1 + ((index + 3 * (size_t)of_rank) & 7));
}

static float *allocate(size_t bytes) {
  size_t rounded = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  float *memory = aligned_alloc(HUGE_PAGE, rounded);
  if (!memory) fail("aligned_alloc");
  madvise(memory, rounded, MADV_HUGEPAGE);
  return memory;
}

static void reserve(size_t bytes) {
  if (bytes <= capacity) return;
  free(input);
  free(output);
  input = allocate(bytes);
  output = allocate(bytes);
  capacity = bytes;
}

static void fill(float *vector, size_t count) {
  float pattern[8];
  for (size_t i = 0; i < 8; i++) pattern[i] = value(rank, i);
  for (size_t i = 0; i < count; i++) vector[i] = pattern[i & 7];
}

/* An in-place sum multiplies what all ranks hold alike by their number: `factor` after the first. */
static int is_right(const float *vector, size_t count, double factor) {
  float expected[8];
  for (size_t i = 0; i < 8; i++) {
    double sum = 0;
    for (int r = 0; r < size; r++) sum += value(r, i);
    expected[i] = (float)(sum * factor);
  }
  for (size_t i = 0; i < count; i++)
    if (!(fabsf(vector[i] - expected[i & 7]) <= 1e-5f * expected[i & 7])) return 0;
  return 1;
}

static double turn(size_t bytes, long iterations, long burst, int in_place, int *ok) {
  size_t count = bytes / sizeof(float);
  double seconds = 0;
  *ok = 1;
  reserve(bytes);
  for (long left = iterations; left > 0;) {
    long now = left < burst ? left : burst;
    fill(input, count);
    if (!in_place) memset(output, 0, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long i = 0; i < now; i++) {
      if (in_place)
        MPI_Allreduce(MPI_IN_PLACE, input, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      else
        MPI_Allreduce(input, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    seconds += MPI_Wtime() - start;
    left -= now;
    if (left == 0) *ok = is_right(in_place ? input : output, count, in_place ? pow(size, (double)(now - 1)) : 1);
  }
  return seconds * 1e6 / (double)iterations;
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s HOST PORT TOKEN, under mpirun\n", argv[0]);
    return 2;
  }
  MPI_Init(NULL, NULL);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[2]))};
  if (inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) fail("inet_pton");
  int control = socket(AF_INET, SOCK_STREAM, 0);
  if (control < 0 || connect(control, (struct sockaddr *)&address, sizeof address) != 0) fail("connect");
  FILE *commands = fdopen(control, "r");
  if (!commands) fail("fdopen");
  dprintf(control, "hello %s %d %d\n", argv[3], rank, (int)getpid());
  char line[256];
  while (fgets(line, sizeof line, commands)) {
    size_t bytes;
    long iterations, burst;
    char variant[32];
    if (strcmp(line, "quit\n") == 0) {
      MPI_Finalize();
      return 0;
    }
    if (sscanf(line, "turn %zu %ld %ld %31s", &bytes, &iterations, &burst, variant) != 4 || burst < 1) {
      dprintf(control, "error cannot read the command: %s", line);
      continue;
    }
    int ok;
    double microseconds = turn(bytes, iterations, burst, strcmp(variant, "separate") != 0, &ok);
    dprintf(control, "%.6f %s\n", microseconds, ok ? "ok" : "wrong");
  }
  /* The coordinator is gone. MPI_Finalize would wait for ranks that may be gone too. */
  _exit(0);
}
