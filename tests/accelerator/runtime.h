// What torch asks of any accelerator: allocators, streams and events, a random generator, hooks.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "streams.h"

namespace simulated {

constexpr unsigned char POISON = 0xFF;  // makes NaNs of floats

// Waits of the host that a program may want to avoid, by what caused them.
inline std::mutex g_stalls_mutex;
inline std::map<std::string, int> g_stalls;
inline void stall(const std::string& kind) {
  std::lock_guard<std::mutex> lock(g_stalls_mutex);
  ++g_stalls[kind + " in " + t_work];
}

inline const at::Device DEVICE(at::kPrivateUse1, 0);

struct DeviceAllocator final : c10::DeviceAllocator {
  at::DataPtr allocate(size_t bytes) override {
    if (!bytes) return {nullptr, DEVICE};
    void* block = device_pool().take(bytes, t_stream);
    stream(t_stream).now([&] { memset(real(block), POISON, bytes); });
    return {block, block, &give, DEVICE};
  }
  static void give(void* block) { device_pool().give(block); }
  at::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(real(to), real(from), bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& block, c10::Stream on) override {
    device_pool().record(block.get(), int(on.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = int64_t(device_pool().used);
    stats.allocated_bytes[0].peak = int64_t(device_pool().peak);
    stats.reserved_bytes[0].current = int64_t(device_pool().reserved);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { device_pool().peak = device_pool().used; }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    return {ARENA_BYTES - device_pool().reserved, ARENA_BYTES};  // as a driver, which knows what was taken from it
  }
};

struct PinnedAllocator final : at::HostAllocator {
  at::DataPtr allocate(size_t bytes) override {
    if (!bytes) return {nullptr, at::Device(at::kCPU)};
    void* block = pinned_pool().take(bytes, 0);
    memset(block, POISON, bytes);
    return {block, block, &give, at::Device(at::kCPU)};
  }
  static void give(void* block) { pinned_pool().give(block); }
  at::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
  bool record_event(void* block, void*, c10::Stream on) override {
    pinned_pool().record(block, int(on.id()));
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

inline DeviceAllocator* g_device_allocator = new DeviceAllocator;
inline PinnedAllocator* g_pinned_allocator = new PinnedAllocator;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::PrivateUse1;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return static_type; }
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  static c10::Stream handle(int index) { return c10::Stream(c10::Stream::UNSAFE, DEVICE, index); }
  c10::Stream getStream(c10::Device) const noexcept override { return handle(t_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return handle(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return getNewStream(DEVICE, 0); }
  c10::Stream getNewStream(c10::Device, int) const override {
    // in threes, as devices take them: a lane's stream is never another lane's, which would order what no wait orders
    static std::atomic<int> given{0};
    return handle(1 + given++ % ((STREAMS - 1) / 3 * 3));
  }
  c10::Stream exchangeStream(c10::Stream next) const noexcept override {
    const int before = t_stream;
    t_stream = int(next.id());
    return handle(before);
  }
  bool queryStream(const c10::Stream& on) const override {
    Stream& queue = stream(int(on.id()));
    return queue.is_done(queue.last());
  }
  void synchronizeStream(const c10::Stream& on) const override {
    stall("stream synchronised");
    stream(int(on.id())).drain();
    host_follows(int(on.id()));
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    stall("device synchronised");
    for (int index = 0; index < STREAMS; ++index) {
      stream(index).drain();
      host_follows(index);
    }
  }
  void recordDataPtrOnStream(const c10::DataPtr& block, const c10::Stream& on) const override {
    g_device_allocator->recordStream(block, on);
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete (Event*)event; }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Event;
    auto mark = std::make_shared<Mark>();
    {
      std::lock_guard<std::mutex> lock(checker().mutex);
      join(checker().clock(int(on.id())), checker().clock(Host::actor()));
      mark->clock = checker().clock(int(on.id()));
    }
    ((Event*)*event)->mark = mark;
    stream(int(on.id())).push([mark] { mark->reach(); });
  }
  void block(void* event, const c10::Stream& on) const override {
    if (!event) return;
    auto mark = ((Event*)event)->mark;
    {
      std::lock_guard<std::mutex> lock(checker().mutex);
      join(checker().clock(int(on.id())), mark->clock);
    }
    stream(int(on.id())).push([mark] { mark->wait(); });
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    if (!((Event*)event)->mark->is_reached()) return false;
    ((Event*)event)->mark->host_follows();
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    ((Event*)event)->mark->wait();
    ((Event*)event)->mark->host_follows();
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    Mark &first = *((Event*)begin)->mark, &last = *((Event*)end)->mark;
    TORCH_CHECK(first.is_reached() && last.is_reached(), "elapsed_time: not both events are over");
    return std::chrono::duration<double, std::milli>(last.when - first.when).count();
  }
};

struct Generator : at::CPUGeneratorImpl {
  Generator() {
    device_ = DEVICE;
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};
inline at::Generator& default_generator() {
  static at::Generator generator = at::make_generator<Generator>();
  return generator;
}

struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void init() const override {}
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Generator>(); }
  at::Device getDeviceFromPtr(void*) const override { return DEVICE; }
  bool isPinnedPtr(const void* pointer) const override { return pinned_arena().holds(pointer); }
  at::Allocator* getPinnedMemoryAllocator() const override { return g_pinned_allocator; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    at::DataPtr block = g_device_allocator->allocate(bytes);
    const size_t shared = std::min(bytes, storage.nbytes());
    if (shared) g_device_allocator->copy_data(block.get(), storage.data(), shared);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(block));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

}  // namespace simulated
