#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

// A character-level language model: the last kContext characters are looked up in an embedding, one
// hidden layer of tanh units reads them, a softmax guesses the next character. Plain loops, fixed
// order of every sum: the same inputs give the same bits.

namespace charlm {

inline constexpr uint64_t kVocabulary = 128;  // ASCII
inline constexpr uint64_t kContext = 8;
inline constexpr uint64_t kEmbedding = 16;
inline constexpr uint64_t kInputs = kContext * kEmbedding;

/// A row-major matrix that is trained, with its gradient. Ranks own it by rows.
struct Parameter {
  std::string name;
  uint64_t rows = 0;
  uint64_t columns = 0;
  std::vector<float> value;
  std::vector<float> gradient;
};

/// One thing to learn from: kContext characters and the one that follows.
struct Example {
  const uint8_t* context = nullptr;
  uint8_t next = 0;
};

class Model {
 public:
  /// Random weights that depend on nothing but `hidden` and `seed`.
  Model(uint64_t hidden, uint64_t seed);

  /// The hidden size that brings the number of weights nearest to `parameters`.
  static uint64_t HiddenFor(uint64_t parameters);

  /// Sets the gradients to those of the mean loss over `batch`; returns that loss in nats.
  double ComputeGradients(std::span<const Example> batch);

  std::vector<Parameter>& parameters() { return parameters_; }
  uint64_t size() const;

 private:
  struct Tile;
  void ForwardTile(const Tile& tile, uint64_t count);
  double SoftmaxGradient(std::span<const Example> batch);
  void BackwardTile(const Tile& tile, uint64_t count);

  enum { kEmbed, kHiddenWeight, kHiddenBias, kOutputWeight, kOutputBias };
  Parameter& Get(int index) { return parameters_[static_cast<size_t>(index)]; }

  uint64_t hidden_;
  std::vector<Parameter> parameters_;
  // Of the current batch, one row an example.
  std::vector<float> input_;
  std::vector<float> input_gradient_;
  std::vector<float> activation_;
  std::vector<float> logits_;  // then their gradients
};

/// Splits `rows` over `world` ranks as evenly as it goes: the first row of `rank`.
inline uint64_t FirstRow(uint64_t rows, uint32_t rank, uint32_t world) {
  return rows * rank / world;
}

}  // namespace charlm
