// A simulated accelerator for torch: a backend of PrivateUse1 on a machine that has none.
//
// Device memory cannot be touched by the host; streams run copies late, in threads, and what a copy will fill holds NaNs
// until then. Layers are computed by the CPU's kernels, at once, in the order of their stream. Each access is checked.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
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
#include <torch/library.h>

#include "runtime.h"

namespace simulated {

static bool g_is_registered = [] {
  c10::SetAllocator(at::kPrivateUse1, g_device_allocator);
  at::setHostAllocator(at::kPrivateUse1, g_pinned_allocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---- accesses

struct Span {
  char* begin;
  size_t bytes = 0;

  explicit Span(const at::Tensor& tensor)
      : begin((char*)tensor.storage().data() + tensor.storage_offset() * tensor.itemsize()) {
    if (!tensor.numel()) return;
    size_t last = 0;
    for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
    bytes = (last + 1) * tensor.itemsize();
  }
};

static void access(int on, const at::Tensor* reads, const at::Tensor* writes) {
  std::lock_guard<std::mutex> lock(checker().mutex);
  checker().issue(on, Host::actor());
  for (auto [tensor, is_written] : {std::pair(reads, false), std::pair(writes, true)}) {
    if (!tensor) continue;
    const Span span(*tensor);
    checker().access(on, span.begin, span.bytes, is_written);
  }
}

static void host_access(const at::Tensor& tensor, bool writes, const std::string& operation) {
  const Span span(tensor);
  std::lock_guard<std::mutex> lock(checker().mutex);
  t_operation = operation;
  ++checker().clock(Host::actor())[Host::actor()];
  checker().access(Host::actor(), span.begin, span.bytes, writes);
}

// ---- operators

static thread_local int t_nested = 0;  // inside a kernel of the CPU: its copies are its accesses, and are not late

struct Operation {
  explicit Operation(std::string name, bool nests) : before_(t_operation), nests_(nests) {
    if (!t_nested) t_operation = std::move(name);
    t_nested += nests_;
  }
  ~Operation() {
    t_operation = before_;
    t_nested -= nests_;
  }

 private:
  std::string before_;
  bool nests_;
};

// The same bytes as a tensor of the CPU.
static at::Tensor as_host(const at::Tensor& tensor) {
  if (!tensor.device().is_privateuseone()) return tensor;
  const auto options = tensor.options().device(at::kCPU).requires_grad(false);
  if (!tensor.numel()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  at::Tensor same = at::from_blob(real(Span(tensor).begin), tensor.sizes(), tensor.strides(), options);
  same._set_conj(tensor.is_conj());
  same._set_neg(tensor.is_neg());
  return same;
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
  Operation operation(name, false);
  if (!to.numel()) return to;
  const Span source(from), target(to);
  const bool is_pinned = !crosses || pinned_arena().holds(leaves ? target.begin : source.begin);
  const bool is_plain = is_one_piece(from, to);
  if (!t_nested && crosses) {
    if (!non_blocking) stall("blocking " + name);
    else if (!is_pinned) stall("pageable " + name);
    else if (!is_plain) stall("converting or strided " + name);
  }
  const int on = t_stream;
  access(on, &from, &to);
  const bool host_waits = crosses && (!non_blocking || (leaves && !is_pinned));
  if (t_nested || !is_plain || host_waits) {
    stream(on).now([&] { as_host(to).copy_(as_host(from)); });
    if (!t_nested && host_waits) host_follows(on);
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
  Operation operation("item", false);
  stall("item");
  access(t_stream, &tensor, nullptr);
  stream(t_stream).drain();
  if (!t_nested) host_follows(t_stream);
  return at::native::_local_scalar_dense_cpu(as_host(tensor));
}

using Type = std::optional<c10::ScalarType>;
using Memory = std::optional<c10::Layout>;
using Place = std::optional<c10::Device>;
using Flag = std::optional<bool>;
using Maybe = std::optional<at::Tensor>;
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

// Every other operator: the CPU's kernel.
static void on_the_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Operation operation(op.schema().operator_name().name, true);
  at::native::cpu_fallback(op, stack);
}

static Maybe host_copy(const Maybe& tensor) {
  return tensor && tensor->defined() ? Maybe(tensor->cpu()) : std::nullopt;
}

// torch asks a PrivateUse1 backend for "overrideable" convolutions
static at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const Maybe& bias, Ints stride,
                              Ints padding, Ints dilation, bool transposed, Ints extra, int64_t groups) {
  Operation operation("convolution", true);
  return at::convolution(x.cpu(), weight.cpu(), host_copy(bias), stride, padding, dilation, transposed, extra, groups)
      .to(DEVICE);
}
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
static Three on_the_device(const Three& results) {
  auto put = [](const at::Tensor& one) { return one.defined() ? one.to(DEVICE) : one; };
  return {put(std::get<0>(results)), put(std::get<1>(results)), put(std::get<2>(results))};
}
static Three convolution_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight,
                                  Ints stride, Ints padding, Ints dilation, bool transposed, Ints extra,
                                  int64_t groups, std::array<bool, 3> wanted) {
  Operation operation("convolution_backward", true);
  const std::vector<int64_t> bias{transposed ? weight.size(1) * groups : weight.size(0)};
  const auto bias_sizes = wanted[2] ? at::OptionalIntArrayRef(bias) : std::nullopt;
  return on_the_device(at::convolution_backward(gradient.cpu(), x.cpu(), weight.cpu(), bias_sizes, stride, padding,
                                                dilation, transposed, extra, groups, wanted));
}

// its schema does not say that it changes the running statistics, so the common way would lose the change
static Three batch_norm(const at::Tensor& x, const Maybe& weight, const Maybe& bias, const Maybe& mean,
                        const Maybe& variance, bool training, double momentum, double eps) {
  Operation operation("native_batch_norm", true);
  Maybe new_mean = host_copy(mean), new_variance = host_copy(variance);
  auto results = at::native_batch_norm(x.cpu(), host_copy(weight), host_copy(bias), new_mean, new_variance, training,
                                       momentum, eps);
  if (training && new_mean) at::Tensor(*mean).copy_(*new_mean);
  if (training && new_variance) at::Tensor(*variance).copy_(*new_variance);
  return on_the_device(results);
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
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
  library.impl("native_batch_norm", batch_norm);
  // torch would make these of others, which sum in another order than the CPU's own
  for (const char* name : {"native_layer_norm", "native_group_norm", "fill_.Scalar", "zero_", "native_dropout",
                           "native_dropout_backward", "_fused_adamw_", "silu_backward", "mish_backward"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_the_host>());
}
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
