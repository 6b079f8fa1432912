#include "charlm/model.h"

#include <algorithm>
#include <cmath>

#include "charlm/random.h"

namespace charlm {
namespace {
// Hidden units that are processed at a time, so that they stay in the cache.
constexpr uint64_t kTileColumns = 1024;

void AddScaled(float* to, const float* from, float scale, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) to[i] += scale * from[i];
}

/// Sums eight partial sums in a fixed order, which is fast and deterministic.
float Dot(const float* a, const float* b, uint64_t count) {
  float sums[8] = {};
  uint64_t vectors_end = count - count % 8;
  for (uint64_t i = 0; i < vectors_end; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float tail = 0;
  for (uint64_t i = vectors_end; i < count; ++i) tail += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7])) +
         tail;
}

Parameter Make(const char* name, uint64_t rows, uint64_t columns, float scale, Random& random) {
  Parameter parameter{name, rows, columns, {}, {}};
  parameter.value.resize(rows * columns);
  parameter.gradient.resize(rows * columns);
  for (float& value : parameter.value) value = scale * (2 * random.Unit() - 1);
  return parameter;
}
}  // namespace

struct Model::Tile {
  uint64_t first = 0;
  uint64_t columns = 0;
};

Model::Model(uint64_t hidden, uint64_t seed) : hidden_(hidden) {
  Random random(seed);
  float hidden_scale = 1 / std::sqrt(static_cast<float>(kInputs));
  float output_scale = 1 / std::sqrt(static_cast<float>(hidden));
  parameters_.push_back(Make("embedding", kVocabulary, kEmbedding, 0.5F, random));
  parameters_.push_back(Make("hidden.weight", kInputs, hidden, hidden_scale, random));
  parameters_.push_back(Make("hidden.bias", hidden, 1, 0, random));
  parameters_.push_back(Make("output.weight", hidden, kVocabulary, output_scale, random));
  parameters_.push_back(Make("output.bias", kVocabulary, 1, 0, random));
}

uint64_t Model::HiddenFor(uint64_t parameters) {
  constexpr uint64_t kFixed = kVocabulary * kEmbedding + kVocabulary;
  constexpr uint64_t kEach = kInputs + 1 + kVocabulary;
  if (parameters < kFixed + kEach) return 1;
  return (parameters - kFixed + kEach / 2) / kEach;
}

uint64_t Model::size() const {
  uint64_t count = 0;
  for (const Parameter& parameter : parameters_) count += parameter.value.size();
  return count;
}

double Model::ComputeGradients(std::span<const Example> batch) {
  uint64_t count = batch.size();
  for (Parameter& parameter : parameters_) {
    std::fill(parameter.gradient.begin(), parameter.gradient.end(), 0.0F);
  }
  input_.resize(count * kInputs);
  input_gradient_.assign(count * kInputs, 0);
  activation_.resize(count * hidden_);
  logits_.resize(count * kVocabulary);
  for (uint64_t b = 0; b < count; ++b) {
    for (uint64_t k = 0; k < kContext; ++k) {
      const float* row = &Get(kEmbed).value[batch[b].context[k] * kEmbedding];
      std::copy(row, row + kEmbedding, &input_[b * kInputs + k * kEmbedding]);
    }
    std::copy(Get(kOutputBias).value.begin(), Get(kOutputBias).value.end(),
              &logits_[b * kVocabulary]);
  }
  // The forward and the backward pass use tiles of the hidden layer that fit into the cache.
  auto each_tile = [this](auto work) {
    for (uint64_t first = 0; first < hidden_; first += kTileColumns) {
      work(Tile{first, std::min(kTileColumns, hidden_ - first)});
    }
  };
  each_tile([&](const Tile& tile) { ForwardTile(tile, count); });
  double loss = SoftmaxGradient(batch);
  each_tile([&](const Tile& tile) { BackwardTile(tile, count); });
  for (uint64_t b = 0; b < count; ++b) {
    AddScaled(Get(kOutputBias).gradient.data(), &logits_[b * kVocabulary], 1, kVocabulary);
    for (uint64_t k = 0; k < kContext; ++k) {
      AddScaled(&Get(kEmbed).gradient[batch[b].context[k] * kEmbedding],
                &input_gradient_[b * kInputs + k * kEmbedding], 1, kEmbedding);
    }
  }
  return loss;
}

void Model::ForwardTile(const Tile& tile, uint64_t count) {
  const float* bias = &Get(kHiddenBias).value[tile.first];
  for (uint64_t b = 0; b < count; ++b) {
    std::copy(bias, bias + tile.columns, &activation_[b * hidden_ + tile.first]);
  }
  for (uint64_t i = 0; i < kInputs; ++i) {
    const float* weights = &Get(kHiddenWeight).value[i * hidden_ + tile.first];
    for (uint64_t b = 0; b < count; ++b) {
      AddScaled(&activation_[b * hidden_ + tile.first], weights, input_[b * kInputs + i],
                tile.columns);
    }
  }
  for (uint64_t b = 0; b < count; ++b) {
    for (uint64_t j = tile.first; j < tile.first + tile.columns; ++j) {
      float& unit = activation_[b * hidden_ + j];
      unit = std::tanh(unit);
      AddScaled(&logits_[b * kVocabulary], &Get(kOutputWeight).value[j * kVocabulary], unit,
                kVocabulary);
    }
  }
}

/// Replaces the logits by the gradient of the mean loss with respect to them. Returns that loss.
double Model::SoftmaxGradient(std::span<const Example> batch) {
  double loss = 0;
  float share = 1 / static_cast<float>(batch.size());
  for (uint64_t b = 0; b < batch.size(); ++b) {
    float* row = &logits_[b * kVocabulary];
    float highest = *std::max_element(row, row + kVocabulary);
    float sum = 0;
    for (uint64_t v = 0; v < kVocabulary; ++v) sum += row[v] = std::exp(row[v] - highest);
    loss -= std::log(static_cast<double>(row[batch[b].next]) / sum);
    for (uint64_t v = 0; v < kVocabulary; ++v) row[v] *= share / sum;
    row[batch[b].next] -= share;
  }
  return loss / static_cast<double>(batch.size());
}

void Model::BackwardTile(const Tile& tile, uint64_t count) {
  for (uint64_t b = 0; b < count; ++b) {
    const float* guess = &logits_[b * kVocabulary];
    for (uint64_t j = tile.first; j < tile.first + tile.columns; ++j) {
      float& unit = activation_[b * hidden_ + j];
      float back = Dot(&Get(kOutputWeight).value[j * kVocabulary], guess, kVocabulary);
      AddScaled(&Get(kOutputWeight).gradient[j * kVocabulary], guess, unit, kVocabulary);
      unit = back * (1 - unit * unit);  // from here on the gradient of the unit's input
      Get(kHiddenBias).gradient[j] += unit;
    }
  }
  for (uint64_t i = 0; i < kInputs; ++i) {
    const float* weights = &Get(kHiddenWeight).value[i * hidden_ + tile.first];
    float* gradient = &Get(kHiddenWeight).gradient[i * hidden_ + tile.first];
    for (uint64_t b = 0; b < count; ++b) {
      const float* units = &activation_[b * hidden_ + tile.first];
      AddScaled(gradient, units, input_[b * kInputs + i], tile.columns);
      input_gradient_[b * kInputs + i] += Dot(weights, units, tile.columns);
    }
  }
}

}  // namespace charlm
