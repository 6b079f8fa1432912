#include <fmt/format.h>
#include <isa-l/erasure_code.h>

#include <algorithm>
#include <array>

#include "bench/bench.h"
#include "storage/erasure/code.h"
#include "storage/erasure/stripe_layout.h"
#include "storage/volume/aligned_buffer.h"

namespace holdfast::bench {
namespace {

constexpr uint64_t kSegmentBytes = 32ULL << 20;
constexpr uint64_t kTurnBytes = 4ULL << 20;  // short turns: both see the same load of the machine

/// The segments of one stripe, in memory aligned like a slot's.
class Stripe {
 public:
  static Result<Stripe> Make(uint32_t segments, uint64_t bytes) {
    Stripe stripe;
    for (uint32_t i = 0; i < segments; ++i) {
      HOLDFAST_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(bytes));
      FillRandom(buffer.data(), bytes, i + 1);
      stripe.segments_.push_back(std::move(buffer));
    }
    return stripe;
  }

  std::span<std::byte> Unit(uint32_t segment, uint64_t at) const {
    return segments_[segment].span().subspan(at, kStripeUnitBytes);
  }

 private:
  std::vector<AlignedBuffer> segments_;
};

/// Plain ISA-L with `sources` to `outputs` segments. Its speed does not depend on the coefficients,
/// so a Cauchy matrix represents decoding as well.
class PlainCode {
 public:
  PlainCode(uint32_t sources, uint32_t outputs)
      : sources_(static_cast<int>(sources)), outputs_(static_cast<int>(outputs)) {
    std::vector<unsigned char> matrix(size_t{sources + outputs} * sources);
    gf_gen_cauchy1_matrix(matrix.data(), sources_ + outputs_, sources_);
    tables_.resize(size_t{32} * sources * outputs);
    ec_init_tables(sources_, outputs_, &matrix[size_t{sources} * sources], tables_.data());
  }

  void Run(const Stripe& stripe, const std::vector<uint32_t>& from,
           const std::vector<uint32_t>& into, uint64_t at) {
    auto raw = [&](uint32_t segment) {
      return reinterpret_cast<unsigned char*>(stripe.Unit(segment, at).data());
    };
    std::transform(from.begin(), from.end(), source_pointers_.begin(), raw);
    std::transform(into.begin(), into.end(), output_pointers_.begin(), raw);
    ec_encode_data(static_cast<int>(kStripeUnitBytes), sources_, outputs_, tables_.data(),
                   source_pointers_.data(), output_pointers_.data());
  }

 private:
  int sources_;
  int outputs_;
  std::vector<unsigned char> tables_;
  std::array<unsigned char*, kCodeSegmentsMax> source_pointers_{};
  std::array<unsigned char*, kCodeSegmentsMax> output_pointers_{};
};

Status EncodeUnit(const ErasureCode& code, const Stripe& stripe, uint64_t at) {
  std::array<std::span<const std::byte>, kCodeSegmentsMax> data;
  std::array<std::span<std::byte>, kCodeParityMax> parity;
  for (uint32_t i = 0; i < code.data_count(); ++i) data[i] = stripe.Unit(i, at);
  for (uint32_t i = 0; i < code.parity_count(); ++i) {
    parity[i] = stripe.Unit(code.data_count() + i, at);
  }
  return code.Encode(std::span(data).first(code.data_count()),
                     std::span(parity).first(code.parity_count()));
}

Status DecodeUnit(const ErasureCode& code, const Stripe& stripe, const std::vector<uint32_t>& from,
                  const std::vector<uint32_t>& into, uint64_t at) {
  std::array<PresentSegment, kCodeSegmentsMax> present;
  std::array<WantedSegment, kCodeParityMax> wanted;
  for (size_t i = 0; i < from.size(); ++i) present[i] = {from[i], stripe.Unit(from[i], at)};
  for (size_t i = 0; i < into.size(); ++i) wanted[i] = {into[i], stripe.Unit(into[i], at)};
  return code.Decode(std::span(present).first(from.size()), std::span(wanted).first(into.size()));
}

/// Alternates `ours` with plain ISA-L, each time over other units of the stripe, so that neither
/// benefits from a cache that the other has filled. The ratio is the median over adjacent turns.
Result<BenchResult> Compare(const Stripe& stripe, const std::vector<uint32_t>& from,
                            const std::vector<uint32_t>& into,
                            const std::function<Status(uint64_t)>& ours) {
  PlainCode plain(static_cast<uint32_t>(from.size()), static_cast<uint32_t>(into.size()));
  std::vector<double> our_seconds;
  std::vector<double> plain_seconds;
  std::vector<double> ratios;
  Status status;
  auto run_ours = [&](uint64_t begin) {
    our_seconds.push_back(SecondsOf([&] {
      for (uint64_t at = begin; at < begin + kTurnBytes && status.ok(); at += kStripeUnitBytes) {
        status = ours(at);
      }
    }));
  };
  auto run_plain = [&](uint64_t begin) {
    plain_seconds.push_back(SecondsOf([&] {
      for (uint64_t at = begin; at < begin + kTurnBytes; at += kStripeUnitBytes) {
        plain.Run(stripe, from, into, at);
      }
    }));
  };
  for (uint64_t round = 0; round < 25; ++round) {
    const uint64_t first = 2 * round * kTurnBytes % kSegmentBytes;
    const uint64_t second = first + kTurnBytes;
    if (round % 2 == 0) {
      run_ours(first);
      run_plain(second);
    } else {
      run_plain(first);
      run_ours(second);
    }
    HOLDFAST_RETURN_IF_ERROR(status);
    ratios.push_back(plain_seconds.back() / our_seconds.back());
  }
  const double gigabytes = static_cast<double>(kTurnBytes * from.size()) / 1e9;
  return BenchResult{.name = "",
                     .ratio = Median(ratios),
                     .ours = gigabytes / Median(our_seconds),
                     .reference = gigabytes / Median(plain_seconds),
                     .unit = "GB/s",
                     .goal = ">=0.9",
                     .note = ""};
}

Status RunShape(uint32_t n, uint32_t m, std::vector<BenchResult>& results) {
  const uint32_t k = n - m;
  HOLDFAST_ASSIGN_OR_RETURN(auto code, ErasureCode::Make(k, m));
  HOLDFAST_ASSIGN_OR_RETURN(Stripe stripe, Stripe::Make(n, kSegmentBytes));
  std::vector<uint32_t> data;
  std::vector<uint32_t> parity;
  for (uint32_t i = 0; i < n; ++i) (i < k ? data : parity).push_back(i);
  HOLDFAST_ASSIGN_OR_RETURN(BenchResult encode, Compare(stripe, data, parity, [&](uint64_t at) {
                              return EncodeUnit(*code, stripe, at);
                            }));
  encode.name = fmt::format("erasure_encode_{}_{}", n, m);
  encode.note = fmt::format("source bytes, {}+{}, 1 MiB units ÷ plain ISA-L ec_encode_data", k, m);
  results.push_back(encode);

  // The first m data segments are lost, so that decoding needs all parity.
  const std::vector<uint32_t> lost(data.begin(), data.begin() + m);
  std::vector<uint32_t> survivors(data.begin() + m, data.end());
  survivors.insert(survivors.end(), parity.begin(), parity.end());
  HOLDFAST_ASSIGN_OR_RETURN(BenchResult decode, Compare(stripe, survivors, lost, [&](uint64_t at) {
                              return DecodeUnit(*code, stripe, survivors, lost, at);
                            }));
  decode.name = fmt::format("erasure_decode_{}_{}", n, m);
  decode.note = fmt::format("the same, {} lost data segments from {} survivors", m, k);
  results.push_back(decode);
  return Status::Ok();
}

}  // namespace

Result<std::vector<BenchResult>> RunErasure(const BenchOptions& /*options*/) {
  std::vector<BenchResult> results;
  for (auto [n, m] : {std::pair(4U, 1U), std::pair(8U, 2U), std::pair(16U, 2U)}) {
    HOLDFAST_RETURN_IF_ERROR(RunShape(n, m, results));
  }
  return results;
}

}  // namespace holdfast::bench
