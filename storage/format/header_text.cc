#include "storage/format/header_text.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <iterator>

#include "storage/format/image.h"

namespace holdfast {

static_assert(std::endian::native == std::endian::little, "formats are little-endian in memory");

namespace {

/// Returns the bytes of the well-formed UTF-8 character at the start of `text`; 0 if there is none.
size_t Utf8CharacterBytes(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  // The range of the second byte excludes overlong forms, surrogates and values above U+10FFFF.
  size_t bytes = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xbf;
  if (first >= 0xc2 && first <= 0xdf) {
    bytes = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    bytes = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    bytes = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  }
  if (bytes == 0 || text.size() < bytes || byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < bytes; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return bytes;
}

void AppendNumber(uint64_t number, std::string* out) {
  fmt::format_int text(number);
  out->append(text.data(), text.size());
}

void AppendNumbers(std::span<const uint64_t> numbers, std::string* out) {
  out->push_back('[');
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendNumber(numbers[i], out);
  }
  out->push_back(']');
}

void AppendName(std::string_view name, std::string* out) {
  if (!out->empty()) out->push_back(',');
  out->push_back('"');
  AppendEscaped(name, out);
  out->push_back('"');
}

}  // namespace

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    size_t bytes = Utf8CharacterBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string QuoteForMessage(std::string_view name) {
  constexpr size_t kShownMax = 80;
  std::string shown = "'";
  while (!name.empty()) {
    size_t bytes = Utf8CharacterBytes(name);
    if (shown.size() + bytes > kShownMax) {
      shown += "…";
      break;
    }
    bool plain = bytes > 1 || (bytes == 1 && name[0] >= 0x20 && name[0] != 0x7f);
    shown += plain ? name.substr(0, bytes) : "?";
    name.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return shown + "'";
}

std::string ShapeForMessage(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

bool TensorBytes(DType dtype, std::span<const uint64_t> shape, uint64_t* bytes) {
  uint64_t product = SizeOf(dtype);
  for (uint64_t dimension : shape) {
    if (__builtin_mul_overflow(product, dimension, &product)) return false;
  }
  *bytes = product;
  return product < kImageBytesMax;
}

void AppendEscaped(std::string_view text, std::string* out) {
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<uint8_t>(c) < 0x20) {
      fmt::format_to(std::back_inserter(*out), "\\u{:04x}", static_cast<uint8_t>(c));
    } else {
      out->push_back(c);
    }
  }
}

void AppendTensorEntry(std::string_view name, DType dtype, std::span<const uint64_t> shape,
                       uint64_t begin, uint64_t end, std::string* out) {
  AppendName(name, out);
  out->append(":{\"dtype\":\"").append(NameOf(dtype)).append("\",\"shape\":");
  AppendNumbers(shape, out);
  out->append(",\"data_offsets\":");
  AppendNumbers(std::initializer_list<uint64_t>{begin, end}, out);
  out->push_back('}');
}

void SlicesText::Add(const TensorSpec& tensor) {
  if (format_ == kShortSlicesFormat) {
    if (!entries_.empty()) entries_.push_back(',');
    std::vector<uint64_t> numbers;
    if (tensor.sharded()) {
      numbers = tensor.global_shape;
      numbers.insert(numbers.end(), tensor.offset.begin(), tensor.offset.end());
    }
    AppendNumbers(numbers, &entries_);
  } else if (tensor.sharded()) {
    AppendName(tensor.name, &entries_);
    entries_.append(":{\"").append(kGlobalShapeKey).append("\":");
    AppendNumbers(tensor.global_shape, &entries_);
    entries_.append(",\"").append(kOffsetKey).append("\":");
    AppendNumbers(tensor.offset, &entries_);
    entries_.push_back('}');
  }
}

std::string SlicesText::Escaped() const {
  if (format_ == kShortSlicesFormat) return "[" + entries_ + "]";
  std::string escaped = "{";
  AppendEscaped(entries_, &escaped);
  escaped.push_back('}');
  return escaped;
}

Result<std::string> AssembleHeader(const ShardIdentity& identity, const HeaderText& text,
                                   uint64_t residue) {
  HOLDFAST_RETURN_IF_ERROR(ValidateIdentity(identity));
  std::string out(8, '\0');
  out.reserve(HeaderBytesBound(text.tensors.size(), text.extras.size(), text.slices.size()));
  out.append("{\"").append(kMetadataKey).append("\":{");
  auto field = [&](std::string_view key, std::string_view value) {
    if (out.back() != '{') out.push_back(',');
    out.append("\"").append(key).append("\":\"").append(value).append("\"");
  };
  field(kFormatKey, std::to_string(text.format));
  field(kJobKey, identity.job);
  field(kIncarnationKey, std::to_string(identity.version.incarnation.value));
  field(kStepKey, std::to_string(identity.version.step.value));
  field(kRankKey, std::to_string(identity.rank.value));
  field(kWorldKey, std::to_string(identity.world));
  if (text.parts > 0) {
    field(kPartKey, std::to_string(text.part));
    field(kPartsKey, std::to_string(text.parts));
  }
  field(kSlicesKey, text.slices);
  out.push_back('}');
  for (std::string_view entries : {text.tensors, text.extras}) {
    if (!entries.empty()) out.append(",").append(entries);
  }
  out.push_back('}');
  out.append((residue + kImageAlign - out.size() % kImageAlign) % kImageAlign, ' ');

  const uint64_t json_bytes = out.size() - 8;
  if (json_bytes > kHeaderBytesMax) {
    return Fail(InvalidArgumentError(fmt::format(
        "the header takes {} bytes of JSON but safetensors allows {}: save fewer tensors per rank, "
        "or use shorter names",
        json_bytes, kHeaderBytesMax)));
  }
  std::memcpy(out.data(), &json_bytes, sizeof(json_bytes));
  return out;
}

uint64_t HeaderBytesBound(uint64_t tensors, uint64_t extras, uint64_t slices) {
  // Keys, a job name of 128 bytes and numbers of 20 digits fit into the constant.
  constexpr uint64_t kFixedBytes = 1024;
  uint64_t bytes = kFixedBytes + tensors + extras + slices;
  return (bytes + kImageAlign - 1) / kImageAlign * kImageAlign + kImageAlign;
}

Status ValidateIdentity(const ShardIdentity& identity) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", identity.job));
  if (identity.world == 0 || identity.world > kWorldMax) {
    return InvalidArgumentError(
        fmt::format("world {} is not between 1 and {}", identity.world, kWorldMax));
  }
  if (!RankInWorld(identity.rank, identity.world)) {
    return InvalidArgumentError(
        fmt::format("rank {} is outside a world of {}", identity.rank.value, identity.world));
  }
  return Status::Ok();
}

}  // namespace holdfast
