#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

// A character-level language model: an embedding of the last kContext characters, one hidden layer
// of tanh units, and a softmax that predicts the next character. Every sum has a fixed order, so
// the same inputs give the same bits.

namespace charlm {

inline constexpr uint64_t kVocabulary = 128;  // ASCII
inline constexpr uint64_t kContext = 8;
inline constexpr uint64_t kEmbedding = 16;
inline constexpr uint64_t kInputs = kContext * kEmbedding;

/// A trained row-major matrix with its gradient. Each rank owns some of its rows.
struct Parameter {
  std::string name;
  uint64_t rows = 0;
  uint64_t columns = 0;
  std::vector<float> value;
  std::vector<float> gradient;
};

/// One training example: kContext characters and the character that follows.
struct Example {
  const uint8_t* context = nullptr;
  uint8_t next = 0;
};

class Model {
 public:
  /// Makes random weights that depend only on `hidden` and `seed`.
  Model(uint64_t hidden, uint64_t seed);

  /// Returns the hidden size for which the number of weights is closest to `parameters`.
  static uint64_t HiddenFor(uint64_t parameters);

  /// Sets the gradients to those of the mean loss over `batch`. Returns that loss in nats.
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
  // For the current batch, one row per example.
  std::vector<float> input_;
  std::vector<float> input_gradient_;
  std::vector<float> activation_;
  std::vector<float> logits_;  // after SoftmaxGradient their gradients
};

/// Returns the first row of `rank` when `rows` are divided evenly over `world` ranks.
inline uint64_t FirstRow(uint64_t rows, uint32_t rank, uint32_t world) {
  return rows * rank / world;
}

}  // namespace charlm
