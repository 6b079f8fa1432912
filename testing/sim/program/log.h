#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace holdfast::sim::program {

/// A queue in contiguous memory that reuses the space of removed entries. push_back() may move the
/// entries and invalidates references.
template <typename T>
class Log {
 public:
  bool empty() const { return head_ == entries_.size(); }
  size_t size() const { return entries_.size() - head_; }
  T& front() { return entries_[head_]; }
  T& operator[](size_t i) { return entries_[head_ + i]; }
  const T& operator[](size_t i) const { return entries_[head_ + i]; }
  auto begin() { return entries_.begin() + static_cast<ptrdiff_t>(head_); }
  auto end() { return entries_.end(); }
  auto begin() const { return entries_.begin() + static_cast<ptrdiff_t>(head_); }
  auto end() const { return entries_.end(); }

  T& push_back(T entry) {
    if (head_ > 64 && head_ * 2 > entries_.size()) {
      entries_.erase(entries_.begin(), begin());
      head_ = 0;
    }
    entries_.push_back(std::move(entry));
    return entries_.back();
  }
  void pop_front() {
    if (++head_ == entries_.size()) {
      entries_.clear();
      head_ = 0;
    }
  }

 private:
  std::vector<T> entries_;
  size_t head_ = 0;
};

}  // namespace holdfast::sim::program
