// MLX's allocator with its answer checked: where memory can't be had it gives a null pointer, which MLX then writes to
// on another thread. Here std::bad_alloc is thrown instead, on the thread that evaluates, and comes out of eval().
//
// The program's allocator() stands before that of libmlx.so, as ELF has it: MLX calls it through its linkage table.
// What it returns works by the one that it hides, so that counters and limits stay MLX's. Threads: any, as the
// allocator that does the work.

#include <dlfcn.h>
#include <mlx/allocator.h>

#include <cstddef>
#include <new>

namespace mlx::core::allocator {
namespace {

class CheckedAllocator final : public Allocator {
 public:
  explicit CheckedAllocator(Allocator& inner) : inner_(inner) {}

  Buffer malloc(std::size_t n_bytes) override {
    Buffer buffer = inner_.malloc(n_bytes);
    if (n_bytes > 0 && buffer.ptr() == nullptr) throw std::bad_alloc();  // no bytes may be null
    return buffer;
  }
  void free(Buffer buffer) override { inner_.free(buffer); }
  std::size_t size(Buffer buffer) const override { return inner_.size(buffer); }
  Buffer make_buffer(void* bytes, std::size_t n_bytes) override { return inner_.make_buffer(bytes, n_bytes); }
  void release(Buffer buffer) override { inner_.release(buffer); }

 private:
  Allocator& inner_;
};

}  // namespace

Allocator& allocator() {
  using Function = Allocator& (*)();
  // Never destroyed: arrays of other statics are freed after it.
  static auto* const checked =
      new CheckedAllocator(reinterpret_cast<Function>(dlsym(RTLD_NEXT, "_ZN3mlx4core9allocator9allocatorEv"))());
  return *checked;
}

}  // namespace mlx::core::allocator
