// Operators of the device: kernels of the CPU, which run on the device's bytes where they lie.
//
// A kernel chooses its way by the sizes, strides and offsets of what it is given, and sums in the order of that way. So
// inputs are seen with those that they have, and results keep those that the kernel gave them.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "runtime.h"

namespace simulated {

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

using Tensors = std::vector<at::Tensor>;

// An operation of a stream.
inline void access(int on, const Tensors& reads, const Tensors& writes) {
  std::lock_guard<std::mutex> lock(checker().mutex);
  checker().issue(on, Host::actor());
  for (auto [tensors, is_written] : {std::pair(&reads, false), std::pair(&writes, true)})
    for (const at::Tensor& tensor : *tensors) {
      const Span span(tensor);
      checker().access(on, span.begin, span.bytes, is_written);
    }
}

struct Operation {
  explicit Operation(std::string name) : before_(std::exchange(t_operation, std::move(name))) {}
  ~Operation() { t_operation = before_; }

 private:
  std::string before_;
};

// Tensors of the device as tensors of the CPU over the same bytes, and what a kernel made of them as the device's.
class HostViews {
 public:
  at::Tensor of(const at::Tensor& own) {
    if (!own.defined()) return own;
    for (auto& [mine, view] : tensors_)
      if (mine.is_same(own)) return view;
    const bool is_of_host = !own.device().is_privateuseone();
    tensors_.emplace_back(own, is_of_host ? own : shaped(of_storage(own.storage()), c10::DispatchKey::CPU, own));
    return tensors_.back().second;
  }

  // A kernel may have given its targets other sizes.
  void update() {
    for (auto& [own, view] : storages_) {
      if (view.data() == real(own.data())) continue;
      at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(own, view.nbytes());
      memcpy(real(own.data()), view.data(), view.nbytes());
    }
    for (auto& [own, view] : tensors_)
      if (own.sizes() != view.sizes() || own.strides() != view.strides())
        own.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
  }

  // A result: one of the inputs, a view of one, or new.
  at::Tensor own(const at::Tensor& result, Tensors& made) {
    if (!result.defined()) return result;
    for (auto& [mine, view] : tensors_)
      if (view.is_same(result)) return mine;
    for (auto& [mine, view] : storages_)
      if (view.unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl())
        return shaped(mine, c10::DispatchKey::PrivateUse1, result);
    const c10::Storage& storage = result.storage();
    c10::Storage mine({}, storage.nbytes(), g_device_allocator->allocate(storage.nbytes()), g_device_allocator, true);
    if (storage.nbytes())
      stream(t_stream).now([&] { memcpy(real(mine.data()), storage.data(), storage.nbytes()); });
    storages_.emplace_back(mine, storage);
    made.push_back(shaped(mine, c10::DispatchKey::PrivateUse1, result));
    return made.back();
  }

 private:
  c10::Storage of_storage(const c10::Storage& own) {
    for (auto& [mine, view] : storages_)
      if (mine.unsafeGetStorageImpl() == own.unsafeGetStorageImpl()) return view;
    at::DataPtr bytes(own.nbytes() ? real(own.data()) : nullptr, at::Device(at::kCPU));
    storages_.emplace_back(own, c10::Storage({}, own.nbytes(), std::move(bytes), c10::GetAllocator(at::kCPU), true));
    return storages_.back().second;
  }

  static at::Tensor shaped(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
    auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    made._set_conj(like.is_conj());
    made._set_neg(like.is_neg());
    return made;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;
};

// One call of an operator that has a kernel for the CPU.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), name_(op.schema().operator_name().name), stack_(stack) {}

  void run() {
    at::AutoDispatchBelowADInplaceOrView below;
    Operation operation(name_);
    const size_t count = op_.schema().arguments().size();
    for (size_t i = 0; i < count; ++i) replace(i, stack_[stack_.size() - count + i]);
    TORCH_CHECK(foreign_.empty() || !touches_ || takes_any_,
                name_, ": a tensor of the host beside tensors of the device, of shape ", foreign_);
    access(t_stream, reads_, writes_);
    stream(t_stream).now([&] { op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_); });
    views_.update();
    const size_t first = stack_.size() - op_.schema().returns().size();
    for (size_t i = first; i < stack_.size(); ++i) give(stack_[i]);
    access(t_stream, {}, made_);
  }

 private:
  void replace(size_t index, c10::IValue& value) {
    if (value.isTensor()) {
      value = seen(index, value.toTensor());
    } else if (value.isTensorList()) {
      Tensors all = value.toTensorVector();
      for (at::Tensor& one : all) one = seen(index, one);
      value = c10::List<at::Tensor>(all);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> all;
      for (const std::optional<at::Tensor>& one : value.toOptionalTensorVector())
        all.push_back(one ? std::optional(seen(index, *one)) : one);
      value = all;
    } else if (value.isDevice()) {
      value = c10::Device(at::kCPU);
    }
  }

  at::Tensor seen(size_t index, const at::Tensor& own) {
    if (own.defined() && own.dim() && !own.device().is_privateuseone()) foreign_.push_back(own.sizes().vec());
    if (own.defined() && own.device().is_privateuseone()) {
      touches_ = true;
      const c10::AliasInfo* alias = op_.schema().arguments()[index].alias_info();
      if (is_written(index, alias)) writes_.push_back(own);
      else if (!alias) reads_.push_back(own);  // what is only viewed is not read
    }
    return views_.of(own);
  }

  bool is_written(size_t index, const c10::AliasInfo* alias) const {
    if (alias && alias->isWrite()) return true;
    // its schema does not say so: the running mean and variance
    return name_ == "aten::native_batch_norm" && (index == 3 || index == 4) && torch::jit::peek(stack_, 5, 8).toBool();
  }

  void give(c10::IValue& value) {
    if (value.isTensor()) {
      value = views_.own(value.toTensor(), made_);
    } else if (value.isTensorList()) {
      Tensors all = value.toTensorVector();
      for (at::Tensor& one : all) one = views_.own(one, made_);
      value = c10::List<at::Tensor>(all);
    } else if (!value.isNone()) {  // the host has the answer
      stall(name_);
      host_follows(t_stream);
    }
  }

  const c10::OperatorHandle& op_;
  const std::string name_;
  torch::jit::Stack& stack_;
  HostViews views_;
  Tensors reads_, writes_, made_;
  // as on other devices, numbers of the host may meet tensors of the device, and places of the host select from them
  std::vector<std::vector<int64_t>> foreign_;
  bool touches_ = false;
  const bool takes_any_ = name_ == "aten::index" || name_ == "aten::_index_put_impl_";
};

// What torch computes at once on such a device, in the steps that it takes on a CPU: the other rounds once less.
inline at::Tensor dropout(const at::Tensor& x, double p, bool train) {
  if (p == 0 || !train || !x.numel()) return x;
  if (p == 1) return x.mul(at::zeros({}, x.options()));
  return x * at::empty_like(x).bernoulli_(1 - p).div_(1 - p);
}

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
inline Three lstm(const at::Tensor& given, at::TensorList hidden, at::TensorList weights, bool has_biases,
                  int64_t num_layers, double p, bool train, bool is_bidirectional, bool batch_first) {
  TORCH_CHECK(given.scalar_type() == at::kFloat && given.numel() && has_biases,
              "simulated device: an LSTM computes in float32, with biases");
  const int64_t directions = is_bidirectional ? 2 : 1;
  const at::Tensor hx = hidden[0].contiguous(), cx = hidden[1].contiguous();
  at::Tensor x = (batch_first ? given.transpose(0, 1) : given).contiguous();
  Tensors hs, cs;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    Tensors outputs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const int64_t index = layer * directions + direction;
      const auto own = weights.slice(4 * index, 4);
      auto [output, h, c, rest] = at::mkldnn_rnn_layer(x, own[0], own[1], own[2], own[3], hx[index], cx[index],
                                                       direction > 0, {}, 2, hx.size(2), num_layers, true,
                                                       is_bidirectional, batch_first, train);
      outputs.push_back(output);
      hs.push_back(h);
      cs.push_back(c);
    }
    x = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (p != 0 && train && layer < num_layers - 1) x = at::dropout(x, p, true);
  }
  return {batch_first ? x.transpose(0, 1) : x, at::stack(hs, 0), at::stack(cs, 0)};
}

inline void on_the_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, *stack).run(); }

}  // namespace simulated
