// A happens-before checker with vector clocks (Lamport 1978; Flanagan, Freund: FastTrack, 2009).
//
// An actor is a stream or a host thread. Each cell of memory remembers who wrote and read it last, and when; an access
// that does not come after those by the waits that were made is a race, whatever the timing was.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory.h"

namespace simulated {

constexpr int STREAMS = 12, HOSTS = 52, ACTORS = STREAMS + HOSTS;
constexpr size_t CELL_BYTES = 64;

using Clock = std::array<uint32_t, ACTORS>;

inline void join(Clock& clock, const Clock& other) {
  for (int i = 0; i < ACTORS; ++i) clock[i] = std::max(clock[i], other[i]);
}

// What the running operation is called in a report.
inline thread_local std::string t_operation, t_work = "main";

class Checker {
 public:
  std::mutex mutex;  // over all that is not marked as locking by itself

  uint64_t accesses = 0;
  std::map<std::string, int> races;

  Clock& clock(int actor) { return clocks_[actor]; }

  // An operation begins on a stream: it comes after all that its thread did.
  void issue(int stream, int host) {
    join(clocks_[stream], clocks_[host]);
    ++clocks_[stream][stream];
  }

  void access(int actor, const void* begin, size_t bytes, bool writes) {
    Arena* arena = arena_of(begin);
    if (!bytes || !arena) return;
    const Clock& now = clocks_[actor];
    const uint32_t name = name_of(t_operation + " in " + t_work);
    const size_t first = arena->offset(begin) / CELL_BYTES, last = (arena->offset(begin) + bytes - 1) / CELL_BYTES;
    Cell* cells = cells_of(*arena);
    for (size_t i = first; i <= last; ++i) {
      Cell& cell = cells[i];
      ++accesses;
      if (cell.writer != actor && cell.written > now[cell.writer])
        report(writes ? "write after write" : "read after write", cell.written_by, name);
      if (!writes) {
        cell.read[actor] = now[actor];
        cell.read_by[actor] = name;
        continue;
      }
      for (int other = 0; other < ACTORS; ++other)
        if (other != actor && cell.read[other] > now[other]) report("write after read", cell.read_by[other], name);
      cell.written = now[actor];
      cell.written_by = name;
      cell.writer = actor;
    }
  }

  // Memory is given out again: all that streams did with it must be over. Threads no longer refer to it, which orders
  // what they did; the checker need not see how.
  void renew(int actor, const void* begin, size_t bytes) {
    Arena* arena = arena_of(begin);
    if (!bytes || !arena) return;
    const Clock& now = clocks_[actor];
    const uint32_t name = name_of(t_operation + " in " + t_work);
    const size_t first = arena->offset(begin) / CELL_BYTES, last = (arena->offset(begin) + bytes - 1) / CELL_BYTES;
    for (size_t i = first; i <= last; ++i) {
      Cell& cell = cells_of(*arena)[i];
      ++accesses;
      if (cell.writer < STREAMS && cell.written > now[cell.writer]) report("reuse after write", cell.written_by, name);
      for (int other = 0; other < STREAMS; ++other)
        if (cell.read[other] > now[other]) report("reuse after read", cell.read_by[other], name);
      cell = Cell{};
    }
  }

  // Threads meet: what came before `passed_on` comes before what is after `follows` with what it gave.
  Clock passed_on(int actor) {
    Clock passed = clocks_[actor];
    ++clocks_[actor][actor];
    return passed;
  }
  void follows(int actor, const Clock& passed) { join(clocks_[actor], passed); }

 private:
  struct Cell {
    uint32_t written, written_by;
    int writer;
    uint32_t read[ACTORS], read_by[ACTORS];
  };

  static Cell* cells_of(const Arena& arena) {
    static Cell* of_device = (Cell*)reserve(ARENA_BYTES / CELL_BYTES * sizeof(Cell), true);
    static Cell* of_host = (Cell*)reserve(ARENA_BYTES / CELL_BYTES * sizeof(Cell), true);
    return &arena == &device_arena() ? of_device : of_host;
  }

  uint32_t name_of(const std::string& name) {
    auto [found, is_new] = numbers_.try_emplace(name, names_.size());
    if (is_new) names_.push_back(name);
    return found->second;
  }

  void report(const char* kind, uint32_t before, uint32_t now) {
    ++races[std::string(kind) + ": " + names_[now] + ", not after " + names_[before]];
  }

  std::array<Clock, ACTORS> clocks_{};
  std::vector<std::string> names_;
  std::unordered_map<std::string, uint32_t> numbers_;
};

inline Checker& checker() {
  static Checker* one = new Checker;  // lives as long as detached threads
  return *one;
}

// The actor that stands for a host thread. Threads that did not enter share the main thread's, such as autograd's: the
// main thread waits while they run.
class Host {
 public:
  static int actor() { return STREAMS + own().index_; }
  static void enter() {
    std::lock_guard<std::mutex> lock(checker().mutex);
    if (own().index_) return;
    for (int i = 1; i < HOSTS; ++i)
      if (!taken_[i]) {
        taken_[i] = true;
        own().index_ = i;
        ++checker().clock(STREAMS + i)[STREAMS + i];
        return;
      }
    throw std::runtime_error("simulated device: too many host threads");
  }
  ~Host() {
    std::lock_guard<std::mutex> lock(checker().mutex);
    if (index_) taken_[index_] = false;
  }

 private:
  static Host& own() {
    thread_local Host host;
    return host;
  }
  inline static std::array<bool, HOSTS> taken_{};
  int index_ = 0;
};

}  // namespace simulated
