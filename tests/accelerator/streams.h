// Streams that run copies late, each in a thread, events, and the allocator that knows which streams use a block.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "checker.h"

namespace simulated {

inline std::atomic<int> g_late_us{0};  // how late a copy is at most
inline thread_local int t_stream = 0;  // the current one; 0 is the default stream

class Stream {
 public:
  std::recursive_mutex running;  // held while work runs

  void push(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!is_started_) std::thread([this] { run(); }).detach();
    is_started_ = true;
    waiting_.push_back(std::move(work));
    ++pushed_;
    changed_.notify_all();
  }

  // The number of the last work pushed, and whether that of a number is done.
  uint64_t last() {
    std::lock_guard<std::mutex> lock(mutex_);
    return pushed_;
  }
  bool is_done(uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_ >= number;
  }

  void drain() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t number = pushed_;
    changed_.wait(lock, [&] { return done_ >= number; });
  }

  // Does work in this thread, in the order of the stream.
  void now(const std::function<void()>& work) {
    drain();
    std::lock_guard<std::recursive_mutex> lock(running);
    work();
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return !waiting_.empty(); });
        work = std::move(waiting_.front());
        waiting_.pop_front();
      }
      {
        std::lock_guard<std::recursive_mutex> lock(running);
        work();
      }
      work = nullptr;
      std::lock_guard<std::mutex> lock(mutex_);
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  uint64_t pushed_ = 0, done_ = 0;
  bool is_started_ = false;
};

inline Stream& stream(int index) {
  static Stream* all = new Stream[STREAMS];
  return all[index];
}

inline void be_late() {
  const int most = g_late_us.load();
  if (!most) return;
  thread_local std::mt19937 random(std::hash<std::thread::id>()(std::this_thread::get_id()));
  const double share = std::uniform_real_distribution<>(0, 1)(random);
  std::this_thread::sleep_for(std::chrono::microseconds(int(most * share * share)));
}

// The host has waited for a stream: all of it comes before what this thread does now.
inline void host_follows(int index) {
  std::lock_guard<std::mutex> lock(checker().mutex);
  join(checker().clock(Host::actor()), checker().clock(index));
}

// A point on a stream.
class Mark {
 public:
  Clock clock{};
  std::chrono::steady_clock::time_point when;

  void reach() {
    std::lock_guard<std::mutex> lock(mutex_);
    when = std::chrono::steady_clock::now();
    is_reached_ = true;
    changed_.notify_all();
  }
  bool is_reached() {
    std::lock_guard<std::mutex> lock(mutex_);
    return is_reached_;
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return is_reached_; });
  }
  void host_follows() const {
    std::lock_guard<std::mutex> lock(checker().mutex);
    join(checker().clock(Host::actor()), clock);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_reached_ = false;
};

struct Event {
  std::shared_ptr<Mark> mark;
};

// Blocks of an arena, kept for the stream that they were made on, as torch's caching allocators do.
class Pool {
 public:
  explicit Pool(Arena& arena) : arena_(arena) {}

  size_t used = 0, peak = 0, reserved = 0;  // bytes; `reserved` grows when no block that was given back fits

  void* take(size_t bytes, int on) {
    const size_t size = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    std::lock_guard<std::mutex> lock(mutex_);
    collect();
    const auto best = free_.lower_bound({on, size});
    Block block;
    if (best == free_.end() || best->second.stream != on || best->second.size > 2 * size) {
      block = Block{reserved, size, on};
      reserved += size;
      if (reserved > ARENA_BYTES) throw std::runtime_error("simulated device: out of memory");
    } else {
      block = best->second;
      free_.erase(best);
      std::lock_guard<std::mutex> checking(checker().mutex);
      join(checker().clock(Host::actor()), block.freed);
    }
    block.others.clear();
    block.until.clear();
    used += block.size;
    peak = std::max(peak, used);
    live_[block.offset] = block;
    return arena_.seen + block.offset;
  }

  void give(const void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = live_.find(arena_.offset(pointer));
    Block block = found->second;
    live_.erase(found);
    used -= block.size;
    {
      std::lock_guard<std::mutex> checking(checker().mutex);
      block.freed = checker().clock(Host::actor());
      // as they are now: a stream may do other work before the block is given out again
      for (int other : block.others) join(block.freed, checker().clock(other));
    }
    for (int other : block.others) block.until.emplace_back(other, stream(other).last());
    file(block, block.until.empty(), returned_);
  }

  // A stream other than its own uses the block at a place: it is given out again when that stream is done with it.
  void record(const void* pointer, int index) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = live_.upper_bound(arena_.offset(pointer));
    if (found == live_.begin()) return;
    --found;
    if (found->second.stream != index) found->second.others.insert(index);
  }

 private:
  struct Block {
    size_t offset, size;
    int stream;
    std::set<int> others{};
    Clock freed{};
    std::vector<std::pair<int, uint64_t>> until{};
  };

  void file(const Block& block, bool is_free, std::deque<Block>& waiting) {
    if (is_free)
      free_.emplace(std::pair(block.stream, block.size), block);
    else
      waiting.push_back(block);
  }

  void collect() {
    std::deque<Block> waiting;
    for (Block& block : returned_) {
      bool is_over = true;
      for (auto [index, number] : block.until) is_over &= stream(index).is_done(number);
      file(block, is_over, waiting);
    }
    returned_ = std::move(waiting);
  }

  Arena& arena_;
  std::mutex mutex_;
  std::map<size_t, Block> live_;
  std::multimap<std::pair<int, size_t>, Block> free_;  // by stream and size
  std::deque<Block> returned_;
};

inline Pool& device_pool() {
  static Pool* pool = new Pool(device_arena());
  return *pool;
}
inline Pool& pinned_pool() {
  static Pool* pool = new Pool(pinned_arena());
  return *pool;
}

}  // namespace simulated
