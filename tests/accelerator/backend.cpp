// A simulated accelerator for torch: a backend of PrivateUse1 on a machine that has none.
//
// Device memory cannot be touched by the host; streams run copies late, in threads, and what a copy will fill holds NaNs
// until then. Layers are computed by the CPU's kernels, at once, in the order of their stream (`kernels.h`). Each access
// is checked.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_copy_from_and_resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <torch/csrc/Generator.h>
#include <torch/extension.h>

#include "kernels.h"

namespace simulated {

static bool g_is_registered = [] {
  c10::SetAllocator(at::kPrivateUse1, g_device_allocator);
  at::setHostAllocator(at::kPrivateUse1, g_pinned_allocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

static void host_access(const at::Tensor& tensor, bool writes, const std::string& operation) {
  const Span span(tensor);
  std::lock_guard<std::mutex> lock(checker().mutex);
  t_operation = operation;
  ++checker().clock(Host::actor())[Host::actor()];
  checker().access(Host::actor(), span.begin, span.bytes, writes);
}

static bool is_one_piece(const at::Tensor& from, const at::Tensor& to) {
  return from.dtype() == to.dtype() && from.sizes() == to.sizes() && from.is_contiguous() && to.is_contiguous() &&
         !from.is_neg() && !from.is_conj();
}

static at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView below;
  const bool leaves = from.device().is_privateuseone(), arrives = to.device().is_privateuseone();
  const bool crosses = leaves != arrives;
  const std::string name = leaves ? arrives ? "copy on the device" : "copy to the host" : "copy to the device";
  Operation operation(name);
  if (!to.numel()) return to;
  const Span source(from), target(to);
  const bool is_pinned = !crosses || pinned_arena().holds(leaves ? target.begin : source.begin);
  const bool is_plain = is_one_piece(from, to);
  if (crosses) {
    if (!non_blocking) stall("blocking " + name);
    else if (!is_pinned) stall("pageable " + name);
    else if (!is_plain) stall("converting or strided " + name);
  }
  const int on = t_stream;
  access(on, {from}, {to});
  const bool host_waits = crosses && (!non_blocking || (leaves && !is_pinned));
  if (!is_plain || host_waits) {
    HostViews views;
    stream(on).now([&] { views.of(to).copy_(views.of(from)); });
    if (host_waits) host_follows(on);
    return to;
  }
  char *origin = real(source.begin), *destination = real(target.begin);
  const size_t bytes = target.bytes;
  std::shared_ptr<std::vector<char>> staged;  // pageable memory is read before the call returns
  if (!is_pinned) staged = std::make_shared<std::vector<char>>(origin, origin + bytes);
  if (crosses && is_pinned) pinned_pool().record(leaves ? destination : origin, on);
  stream(on).push([=] {
    if (crosses) memset(destination, POISON, bytes);
    be_late();
    memcpy(destination, staged ? staged->data() : origin, bytes);
  });
  return to;
}

static at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

static at::Scalar local_scalar(const at::Tensor& tensor) {
  Operation operation("item");
  stall("item");
  access(t_stream, {tensor}, {});
  stream(t_stream).drain();
  host_follows(t_stream);
  return at::native::_local_scalar_dense_cpu(HostViews().of(tensor));
}

using Type = std::optional<c10::ScalarType>;
using Memory = std::optional<c10::Layout>;
using Place = std::optional<c10::Device>;
using Flag = std::optional<bool>;
using Ints = c10::IntArrayRef;
using SymInts = c10::SymIntArrayRef;

static at::Tensor empty(Ints size, Type type, Memory, Place, Flag, std::optional<c10::MemoryFormat> format) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, g_device_allocator, keys, c10::dtype_or_default(type), format);
}
static at::Tensor empty_strided(Ints size, Ints stride, Type type, Memory, Place, Flag) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, g_device_allocator, keys, c10::dtype_or_default(type));
}

// views and sizes
static at::Tensor as_strided(const at::Tensor& one, SymInts size, SymInts stride, std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(one, size, stride, offset);
}
static const at::Tensor& resize(const at::Tensor& one, SymInts size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(one, C10_AS_INTARRAYREF_SLOW(size), format);
}
static at::Tensor reshape_alias(const at::Tensor& one, SymInts size, SymInts stride) {
  return at::native::_reshape_alias(one, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
static at::Tensor view(const at::Tensor& one, SymInts size) {
  return at::native::view(one, C10_AS_INTARRAYREF_SLOW(size));
}
static at::Tensor& set_tensor(at::Tensor& one, const at::Tensor& other) { return at::native::set_tensor_(one, other); }
static at::Tensor& set_storage(at::Tensor& one, at::Storage storage) { return at::native::set_(one, storage); }
static at::Tensor& set_part(at::Tensor& one, at::Storage storage, int64_t offset, Ints size, Ints stride) {
  return at::cpu::set_(one, storage, offset, size, stride);
}
static void record_stream(at::Tensor& one, c10::Stream on) {
  g_device_allocator->recordStream(one.storage().data_ptr(), on);
}

// programs count integers on any device that is not the CPU, whose kernel has none
static at::Tensor histc(const at::Tensor& x, int64_t bins, const at::Scalar& least, const at::Scalar& most) {
  if (!at::isIntegralType(x.scalar_type(), true))
    return at::native::call_fallback_fn<&on_the_host, at::_ops::histc>::call(x, bins, least, most);
  return at::histc(x.to(at::kDouble), bins, least, most).to(x.scalar_type());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", as_strided);
  library.impl("resize_", resize);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("view", view);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("set_.source_Storage", set_storage);
  library.impl("set_.source_Storage_storage_offset", set_part);
  library.impl("record_stream", record_stream);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("histc", histc);
  library.impl("dropout", dropout);
  library.impl("lstm.input", lstm);
  // torch would make these of others, or look for a backend's own, and so sum in another order than the CPU
  std::set<std::string> all{"convolution", "convolution_backward"};
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    const auto has = [&](c10::DispatchKey key) { return op->hasKernelForDispatchKey(key); };
    const bool is_composed = has(c10::DispatchKey::CompositeExplicitAutograd) ||
                             has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
                             has(c10::DispatchKey::CompositeImplicitAutograd);
    if (name.name.starts_with("aten::") && is_composed && has(c10::DispatchKey::CPU)) all.insert(toString(name));
  }
  for (const std::string& name : all)
    library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_the_host>());
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("dropout", dropout);
  library.impl("lstm.input", lstm);
}
// autocast: the one operation whose casts a test compares with the CPU's
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) { KERNEL_PRIVATEUSEONE(linear, lower_precision_fp) }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
// conjugates and negatives that are not computed yet: a copy computes them
TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_host>());
}

template <typename Do>
static auto checked(Do work) {
  std::lock_guard<std::mutex> lock(checker().mutex);
  return work(checker());
}

}  // namespace simulated

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace simulated;
  // the device
  module.def("set_lateness_us", [](int most) { g_late_us = most; });
  module.def("default_generator", [] { return default_generator(); });
  module.def("delay", [](double seconds) {
    stream(t_stream).push([seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
  });
  module.def("device_memory", [] { return std::tuple(device_pool().used, device_pool().peak, device_pool().reserved); });
  module.def("pinned_memory", [] { return std::tuple(pinned_pool().used, pinned_pool().peak, pinned_pool().reserved); });
  module.def("stalls", [] {
    std::lock_guard<std::mutex> lock(g_stalls_mutex);
    return std::exchange(g_stalls, {});
  });
  // the checker
  module.def("name_work", [](std::string name) { return std::exchange(t_work, std::move(name)); });
  module.def("enter_thread", [] { Host::enter(); });
  module.def("passed_on", [] {
    const Clock passed = checked([](Checker& one) { return one.passed_on(Host::actor()); });
    return py::bytes((const char*)passed.data(), sizeof(passed));
  });
  module.def("follows", [](const std::string& bytes) {
    Clock passed;
    memcpy(passed.data(), bytes.data(), sizeof(passed));
    checked([&](Checker& one) { one.follows(Host::actor(), passed); return 0; });
  });
  module.def("host_access", &host_access);
  module.def("renew", [](const at::Tensor& tensor) {
    const Span span(tensor);
    std::lock_guard<std::mutex> lock(checker().mutex);
    t_operation = "a block given out again";
    checker().renew(Host::actor(), span.begin, span.bytes);
  });
  module.def("accesses", [] { return checked([](Checker& one) { return one.accesses; }); });
  module.def("races", [] { return checked([](Checker& one) { return std::exchange(one.races, {}); }); });
}
