// Memory of the simulated device, and pinned memory of the host: two ranges of addresses.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace simulated {

constexpr size_t ARENA_BYTES = size_t(1) << 30;
constexpr size_t ALIGNMENT = 512;

inline char* reserve(size_t bytes, bool is_open) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* found = mmap(nullptr, bytes, is_open ? PROT_READ | PROT_WRITE : PROT_NONE, flags, -1, 0);
  if (found == MAP_FAILED) throw std::runtime_error("simulated device: no addresses left");
  return (char*)found;
}

// `seen` is what tensors point to; `real` is where the bytes are. They differ for the device: what it shows is closed,
// so that host code that touches device memory ends with a segmentation fault.
struct Arena {
  char* seen;
  char* real;

  bool holds(const void* pointer) const { return (char*)pointer >= seen && (char*)pointer < seen + ARENA_BYTES; }
  size_t offset(const void* pointer) const { return (char*)pointer - seen; }
};

inline Arena& device_arena() {
  static Arena* arena = new Arena{reserve(ARENA_BYTES, false), reserve(ARENA_BYTES, true)};
  return *arena;
}

inline Arena& pinned_arena() {
  static Arena* arena = [] {
    char* memory = reserve(ARENA_BYTES, true);
    return new Arena{memory, memory};
  }();
  return *arena;
}

inline Arena* arena_of(const void* pointer) {
  if (device_arena().holds(pointer)) return &device_arena();
  if (pinned_arena().holds(pointer)) return &pinned_arena();
  return nullptr;
}

// Where the bytes are that a tensor points to.
inline char* real(const void* pointer) {
  Arena* arena = arena_of(pointer);
  return arena ? arena->real + arena->offset(pointer) : (char*)pointer;
}

}  // namespace simulated
