#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "storage/format/header_text.h"
#include "storage/format/image.h"

// Headers come from disks, from other hosts and from foreign files. They are parsed as a stream:
// each value is checked where it appears, values outside the grammar below are refused, and that
// grammar bounds the nesting depth.

namespace holdfast {

namespace {

using Json = nlohmann::json;

/// Bounds memory: a map entry takes many times the bytes of its shortest text.
constexpr size_t kMetadataEntriesMax = 65536;

Status Damaged(const std::string& why) {
  return DataLossError("the image's header is bad: " + why);
}

/// A reader that refuses everything its subclass does not expect. The first error ends the parse.
class StrictReader : public nlohmann::json_sax<Json> {
 public:
  /// `what` begins the messages about invalid JSON, `first` is its first character.
  StrictReader(std::string what, char first) : what_(std::move(what)), first_(first) {}

  /// Parses `text`. Returns OK or the first error.
  Status Read(std::string_view text) {
    // The JSON library would skip a byte order mark and end its input at a NUL.
    if (!text.starts_with(first_)) {
      return Damaged(fmt::format("{} does not begin with '{}'", what_, first_));
    }
    if (text.find('\0') != std::string_view::npos) return Damaged(what_ + " contains a NUL byte");
    try {
      bool read = Json::sax_parse(text.begin(), text.end(), this);
      if (!read && status_.ok()) status_ = Damaged(what_ + " is not JSON");
    } catch (const std::bad_alloc&) {
      status_ = ResourceExhaustedError("not enough memory to read an image's header of " +
                                       std::to_string(text.size()) + " bytes");
    } catch (const std::exception& error) {
      status_ = Damaged(std::string(error.what()).substr(0, 200));
    }
    return status_;
  }

  bool null() override { return Refuse("null is not allowed here"); }
  bool boolean(bool) override { return Refuse("true and false are not allowed here"); }
  bool number_integer(number_integer_t) override { return Refuse("a number is negative"); }
  bool number_float(number_float_t, const string_t&) override {
    return Refuse("a number is not an integer of 64 bits");
  }
  bool binary(binary_t&) override { return Refuse("binary values are not allowed"); }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return Refuse(what_ + " is not JSON at byte " + std::to_string(position));
  }

 protected:
  bool Refuse(const std::string& why) {
    if (status_.ok()) status_ = Damaged(why);
    return false;
  }
  bool Refuse(Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }

 private:
  const std::string what_;
  const char first_;
  Status status_;
};

/// Reads the header into an image's tensors and metadata.
class HeaderReader final : public StrictReader {
 public:
  explicit HeaderReader(ParsedImage* image) : StrictReader("it", '{'), image_(image) {}

  bool start_object(size_t) override {
    switch (at_) {
      case At::kStart:
        at_ = At::kRoot;
        return true;
      case At::kRoot:
        if (name_ == kMetadataKey) {
          if (metadata_seen_) return Refuse("__metadata__ occurs twice");
          metadata_seen_ = true;
          at_ = At::kMetadata;
          return true;
        }
        return StartTensor();
      default:
        return Refuse("unexpected object in " + Where());
    }
  }

  bool key(string_t& key) override {
    if (key.size() > kTensorNameMax) return Refuse("a name is longer than 4096 bytes");
    name_ = std::move(key);
    return true;
  }

  bool string(string_t& value) override {
    if (at_ == At::kMetadata) {
      if (image_->metadata.size() == kMetadataEntriesMax) {
        return Refuse("__metadata__ has more than 65536 entries");
      }
      auto [entry, inserted] = image_->metadata.emplace(name_, std::move(value));
      return inserted || Refuse("__metadata__ has " + QuoteForMessage(entry->first) + " twice");
    }
    if (at_ == At::kTensor && name_ == "dtype") {
      if (dtype_seen_) return Refuse(Where() + " has two dtypes");
      dtype_seen_ = true;
      Result<DType> dtype = ParseDType(value);
      if (dtype) {
        Tensor().spec.dtype = *dtype;
        return true;
      }
      if (dtype.error().code() == ErrorCode::kUnsupported) {
        return Refuse(dtype.error().WithContext(Where()));
      }
      return Refuse(Where() + ": " + dtype.error().message());
    }
    return Refuse("unexpected string in " + Where());
  }

  bool start_array(size_t) override {
    if (at_ == At::kTensor && name_ == "shape" && !shape_seen_) {
      shape_seen_ = true;
      at_ = At::kShape;
      return true;
    }
    if (at_ == At::kTensor && name_ == "data_offsets" && !offsets_seen_) {
      offsets_seen_ = true;
      at_ = At::kOffsets;
      return true;
    }
    return Refuse("unexpected list in " + Where());
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (at_ == At::kShape) {
      if (Tensor().spec.shape.size() == kDimensionsMax) {
        return Refuse(Where() + " has more than 32 dimensions");
      }
      Tensor().spec.shape.push_back(value);
      return true;
    }
    if (at_ == At::kOffsets && offset_count_ < 2) {
      (offset_count_++ == 0 ? Tensor().begin : Tensor().end) = value;
      return true;
    }
    return Refuse("unexpected number in " + Where());
  }

  bool end_array() override {
    if (at_ == At::kOffsets && offset_count_ != 2) {
      return Refuse(Where() + " has " + std::to_string(offset_count_) + " data offsets, not 2");
    }
    at_ = At::kTensor;
    return true;
  }

  bool end_object() override {
    if (at_ == At::kTensor && !(dtype_seen_ && shape_seen_ && offsets_seen_)) {
      return Refuse(Where() + " lacks dtype, shape or data_offsets");
    }
    at_ = at_ == At::kRoot ? At::kEnd : At::kRoot;
    return true;
  }

 private:
  enum class At { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kEnd };

  PlacedTensor& Tensor() { return image_->tensors.back(); }

  bool StartTensor() {
    if (image_->tensors.size() == kTensorsMax) return Refuse("it has more than 1000000 tensors");
    image_->tensors.emplace_back();
    Tensor().spec.name = std::move(name_);
    dtype_seen_ = shape_seen_ = offsets_seen_ = false;
    offset_count_ = 0;
    at_ = At::kTensor;
    return true;
  }

  std::string Where() {
    switch (at_) {
      case At::kMetadata:
        return "__metadata__";
      case At::kTensor:
      case At::kShape:
      case At::kOffsets:
        return "tensor " + QuoteForMessage(Tensor().spec.name);
      case At::kStart:
      case At::kRoot:
      case At::kEnd:
        break;
    }
    return "the outermost object";
  }

  ParsedImage* const image_;
  At at_ = At::kStart;
  std::string name_;
  bool metadata_seen_ = false;
  bool dtype_seen_ = false;
  bool shape_seen_ = false;
  bool offsets_seen_ = false;
  int offset_count_ = 0;
};

/// Returns why the slice of a tensor is invalid, or OK.
Status CheckSlice(const TensorSpec& spec) {
  const std::string name = QuoteForMessage(spec.name);
  if (spec.global_shape.size() != spec.shape.size() || spec.offset.size() != spec.shape.size()) {
    return Damaged("tensor " + name + " and its slice have different numbers of dimensions");
  }
  uint64_t bytes = 0;
  if (!TensorBytes(spec.dtype, spec.global_shape, &bytes)) {
    return Damaged("the global shape of tensor " + name + " overflows");
  }
  for (size_t d = 0; d < spec.shape.size(); ++d) {
    if (spec.shape[d] > spec.global_shape[d] ||
        spec.offset[d] > spec.global_shape[d] - spec.shape[d]) {
      return Damaged("the slice of tensor " + name + " is not inside its global shape");
    }
  }
  return Status::Ok();
}

/// Reads holdfast.slices of format 1 into the tensors it names.
class SlicesReader final : public StrictReader {
 public:
  /// `tensors` must outlive the reader.
  explicit SlicesReader(std::span<PlacedTensor> tensors)
      : StrictReader(std::string(kSlicesKey), '{') {
    tensors_.reserve(tensors.size());
    for (PlacedTensor& tensor : tensors) tensors_.emplace(tensor.spec.name, &tensor.spec);
  }

  bool start_object(size_t) override {
    if (at_ == At::kStart) {
      at_ = At::kRoot;
      return true;
    }
    if (at_ != At::kRoot) return Refuse("holdfast.slices is nested too deep");
    auto found = tensors_.find(name_);
    if (found == tensors_.end()) {
      return Refuse("holdfast.slices names " + QuoteForMessage(name_) +
                    ", which is not a tensor or occurs twice");
    }
    spec_ = found->second;
    tensors_.erase(found);
    spec_->global_shape.clear();
    spec_->offset.clear();
    shape_seen_ = offset_seen_ = false;
    at_ = At::kSlice;
    return true;
  }

  bool key(string_t& key) override {
    name_ = std::move(key);
    return true;
  }

  bool string(string_t&) override { return Refuse("holdfast.slices contains a string"); }

  bool start_array(size_t) override {
    if (at_ == At::kSlice && name_ == kGlobalShapeKey && !shape_seen_) {
      shape_seen_ = true;
      list_ = &spec_->global_shape;
    } else if (at_ == At::kSlice && name_ == kOffsetKey && !offset_seen_) {
      offset_seen_ = true;
      list_ = &spec_->offset;
    } else {
      return Refuse("holdfast.slices has an unexpected list");
    }
    at_ = At::kList;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (at_ != At::kList || list_->size() == spec_->shape.size()) {
      return Refuse("holdfast.slices has an unexpected number");
    }
    list_->push_back(value);
    return true;
  }

  bool end_array() override {
    at_ = At::kSlice;
    return true;
  }

  bool end_object() override {
    if (at_ == At::kRoot) {
      at_ = At::kEnd;
      return true;
    }
    at_ = At::kRoot;
    Status valid = CheckSlice(*spec_);
    return valid.ok() || Refuse(std::move(valid));
  }

 private:
  enum class At { kStart, kRoot, kSlice, kList, kEnd };

  std::unordered_map<std::string_view, TensorSpec*> tensors_;  // tensors without a slice so far
  At at_ = At::kStart;
  std::string name_;
  TensorSpec* spec_ = nullptr;
  std::vector<uint64_t>* list_ = nullptr;
  bool shape_seen_ = false;
  bool offset_seen_ = false;
};

/// Reads holdfast.slices of format 2, which has one list of numbers for each tensor.
class ShortSlicesReader final : public StrictReader {
 public:
  /// `tensors` must outlive the reader.
  explicit ShortSlicesReader(std::span<PlacedTensor> tensors)
      : StrictReader(std::string(kSlicesKey), '['), tensors_(tensors) {}

  /// Returns OK if `text` has exactly one valid list for each tensor.
  Status ReadAll(std::string_view text) {
    HOLDFAST_RETURN_IF_ERROR(Read(text));
    if (next_ == tensors_.size()) return Status::Ok();
    return Damaged(
        fmt::format("holdfast.slices has {} lists for {} tensors", next_, tensors_.size()));
  }

  bool start_object(size_t) override { return Refuse("holdfast.slices contains an object"); }
  bool key(string_t&) override { return Refuse("holdfast.slices contains an object"); }
  bool end_object() override { return Refuse("holdfast.slices contains an object"); }
  bool string(string_t&) override { return Refuse("holdfast.slices contains a string"); }

  bool start_array(size_t) override {
    if (depth_ == 2) return Refuse("holdfast.slices is nested too deep");
    if (depth_ == 1 && next_ == tensors_.size()) {
      return Refuse("holdfast.slices has more lists than there are tensors");
    }
    ++depth_;
    numbers_.clear();
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 2 || numbers_.size() == 2 * kDimensionsMax) {
      return Refuse("holdfast.slices has an unexpected number");
    }
    numbers_.push_back(value);
    return true;
  }

  bool end_array() override {
    --depth_;
    if (depth_ == 0) return true;
    TensorSpec& spec = tensors_[next_++].spec;
    if (numbers_.empty()) return true;  // not a slice
    const auto middle = numbers_.begin() + static_cast<std::ptrdiff_t>(numbers_.size() / 2);
    spec.global_shape.assign(numbers_.begin(), middle);
    spec.offset.assign(middle, numbers_.end());
    Status valid = CheckSlice(spec);
    return valid.ok() || Refuse(std::move(valid));
  }

 private:
  const std::span<PlacedTensor> tensors_;
  size_t next_ = 0;  // the tensor of the current list
  int depth_ = 0;
  std::vector<uint64_t> numbers_;
};

/// Sorts the tensors by place. Checks that each has as many bytes as its shape requires, and that
/// together they fill the data region from `begin` on: no holes, no overlaps, no bytes left over.
Status CheckPlaces(ParsedImage* image, uint64_t begin) {
  auto before = [](const PlacedTensor& a, const PlacedTensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  };
  std::vector<PlacedTensor>& tensors = image->tensors;
  if (!std::is_sorted(tensors.begin(), tensors.end(), before)) {
    std::stable_sort(tensors.begin(), tensors.end(), before);
  }
  uint64_t reached = begin;
  for (PlacedTensor& tensor : tensors) {
    auto damaged = [&](const std::string& why) {
      return Damaged("tensor " + QuoteForMessage(tensor.spec.name) + " " + why);
    };
    uint64_t bytes = 0;
    if (!TensorBytes(tensor.spec.dtype, tensor.spec.shape, &bytes)) {
      return damaged("has a shape that overflows");
    }
    if (tensor.begin > tensor.end || tensor.end - tensor.begin != bytes) {
      return damaged(
          fmt::format("needs {} bytes but is at [{}, {})", bytes, tensor.begin, tensor.end));
    }
    if (tensor.begin != reached) {
      return damaged(
          fmt::format("begins at {} but the tensor before it ends at {}", tensor.begin, reached));
    }
    reached = tensor.end;
    tensor.spec.global_shape = tensor.spec.shape;
    tensor.spec.offset.assign(tensor.spec.shape.size(), 0);
  }
  const uint64_t data_bytes = image->image_bytes - image->data_offset;
  if (reached != data_bytes) {
    return Damaged(
        fmt::format("the tensors have {} bytes but the file has {} of data", reached, data_bytes));
  }
  return Status::Ok();
}

Status CheckNames(const ParsedImage& image) {
  std::unordered_set<std::string_view> names;
  names.reserve(image.tensors.size());
  for (const PlacedTensor& tensor : image.tensors) {
    if (!names.insert(tensor.spec.name).second) {
      return Damaged("tensor " + QuoteForMessage(tensor.spec.name) + " occurs twice");
    }
  }
  return Status::Ok();
}

/// Moves the tensors that represent extra state to the extras.
Status SplitExtras(ParsedImage* image) {
  auto is_extra = [](const PlacedTensor& tensor) {
    return tensor.spec.name.starts_with(kExtraPrefix);
  };
  std::vector<PlacedTensor>& tensors = image->tensors;
  auto first = std::find_if(tensors.begin(), tensors.end(), is_extra);
  for (auto it = first; it != tensors.end(); ++it) {
    const std::string quoted = QuoteForMessage(it->spec.name);
    if (!is_extra(*it)) return Damaged("tensor " + quoted + " comes after the extra state");
    std::string name = it->spec.name.substr(kExtraPrefix.size());
    Status valid = ValidateName("extra state", name);
    if (!valid.ok()) return Damaged(valid.message());
    if (it->spec.dtype != DType::kU8 || it->spec.shape.size() != 1) {
      return Damaged("extra state " + quoted + " is not a list of U8");
    }
    image->extras.push_back({std::move(name), it->begin, it->end});
  }
  tensors.erase(first, tensors.end());
  return Status::Ok();
}

/// Reads a number in the form that this format writes: digits without a leading zero.
template <typename Number>
Status TakeNumber(const ParsedImage& image, std::string_view key, Number* number) {
  auto found = image.metadata.find(std::string(key));
  if (found == image.metadata.end()) return Damaged("__metadata__ lacks " + std::string(key));
  const std::string& text = found->second;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error != std::errc() || end != text.data() + text.size() ||
      (text.size() > 1 && text[0] == '0')) {
    return Damaged(std::string(key) + " is " + QuoteForMessage(text) + ", not a number in range");
  }
  return Status::Ok();
}

bool IsOwnKey(std::string_view key) {
  for (std::string_view known : {kFormatKey, kJobKey, kIncarnationKey, kStepKey, kRankKey,
                                 kWorldKey, kSlicesKey, kPartKey, kPartsKey}) {
    if (key == known) return true;
  }
  return false;
}

/// Unknown keys with Holdfast's prefix, or incomplete sets of keys, are treated as damage: a newer
/// writer would have raised the format number.
Status CheckOwnKeys(const ParsedImage& image) {
  for (const auto& [key, value] : image.metadata) {
    if (key.starts_with(kOwnPrefix) && !IsOwnKey(key)) {
      return Damaged("__metadata__ has " + QuoteForMessage(key) + ", which format " +
                     std::to_string(image.format) + " does not define");
    }
  }
  const bool has_part = image.metadata.contains(std::string(kPartKey));
  if (has_part != image.metadata.contains(std::string(kPartsKey))) {
    return Damaged("__metadata__ has only one of holdfast.part and holdfast.parts");
  }
  if (!has_part) return Status::Ok();
  uint32_t part = 0;
  uint32_t parts = 0;
  HOLDFAST_RETURN_IF_ERROR(TakeNumber(image, kPartKey, &part));
  HOLDFAST_RETURN_IF_ERROR(TakeNumber(image, kPartsKey, &parts));
  if (part >= parts) return Damaged("holdfast.part is not below holdfast.parts");
  return Status::Ok();
}

/// Sets identity, extras and slices from `__metadata__`. Does nothing for a file that Holdfast did
/// not make.
Status InterpretMetadata(ParsedImage* image) {
  auto found = image->metadata.lower_bound(std::string(kOwnPrefix));
  if (found == image->metadata.end() || !found->first.starts_with(kOwnPrefix)) return Status::Ok();

  HOLDFAST_RETURN_IF_ERROR(TakeNumber(*image, kFormatKey, &image->format));
  if (image->format > kImageFormatMax) {
    return UnsupportedError(
        fmt::format("the image has format {} but this build reads up to {}: use a newer Holdfast",
                    image->format, kImageFormatMax));
  }
  if (image->format == 0) return Damaged("holdfast.format is 0");
  HOLDFAST_RETURN_IF_ERROR(CheckOwnKeys(*image));

  ShardIdentity& identity = image->identity;
  auto job = image->metadata.find(std::string(kJobKey));
  if (job == image->metadata.end()) return Damaged("__metadata__ lacks holdfast.job");
  identity.job = job->second;
  HOLDFAST_RETURN_IF_ERROR(
      TakeNumber(*image, kIncarnationKey, &identity.version.incarnation.value));
  HOLDFAST_RETURN_IF_ERROR(TakeNumber(*image, kStepKey, &identity.version.step.value));
  HOLDFAST_RETURN_IF_ERROR(TakeNumber(*image, kRankKey, &identity.rank.value));
  HOLDFAST_RETURN_IF_ERROR(TakeNumber(*image, kWorldKey, &identity.world));
  Status valid = ValidateIdentity(identity);
  if (!valid.ok()) return Damaged(valid.message());

  HOLDFAST_RETURN_IF_ERROR(SplitExtras(image));
  auto slices = image->metadata.find(std::string(kSlicesKey));
  if (slices == image->metadata.end()) return Damaged("__metadata__ lacks holdfast.slices");
  if (image->format < kShortSlicesFormat) return SlicesReader(image->tensors).Read(slices->second);
  return ShortSlicesReader(image->tensors).ReadAll(slices->second);
}

}  // namespace

Result<uint64_t> HeaderBytes(std::span<const std::byte> first8, uint64_t image_bytes) {
  if (first8.size() < 8 || image_bytes < 8) {
    return Fail(Damaged("the file has fewer than 8 bytes"));
  }
  uint64_t json_bytes = 0;
  std::memcpy(&json_bytes, first8.data(), sizeof(json_bytes));
  if (json_bytes < 2 || json_bytes > kHeaderBytesMax) {
    return Fail(Damaged(fmt::format("its length field is {}; 2 to {} bytes are allowed", json_bytes,
                                    kHeaderBytesMax)));
  }
  if (json_bytes > image_bytes - 8) {
    return Fail(Damaged(fmt::format("its length field is {} but the file has only {} bytes",
                                    json_bytes, image_bytes)));
  }
  return 8 + json_bytes;
}

namespace {
/// Parses the JSON of a header whose tensors begin at `begin` of the data region.
Result<ParsedImage> ParseJson(std::string_view json, uint64_t header_bytes, uint64_t image_bytes,
                              uint64_t begin) {
  ParsedImage image;
  image.data_offset = header_bytes;
  image.image_bytes = image_bytes;
  HOLDFAST_RETURN_IF_ERROR(HeaderReader(&image).Read(json));
  HOLDFAST_RETURN_IF_ERROR(CheckPlaces(&image, begin));
  HOLDFAST_RETURN_IF_ERROR(CheckNames(image));
  HOLDFAST_RETURN_IF_ERROR(InterpretMetadata(&image));
  return image;
}
}  // namespace

Result<ParsedImage> ParseImage(std::span<const std::byte> head, uint64_t image_bytes,
                               const ImageLayout* expected) {
  HOLDFAST_ASSIGN_OR_RETURN(const uint64_t header_bytes, HeaderBytes(head, image_bytes));
  if (head.size() < header_bytes) {
    return Fail(InvalidArgumentError(fmt::format("got {} bytes of an image's header, {} are needed",
                                                 head.size(), header_bytes)));
  }
  std::string_view json(reinterpret_cast<const char*>(head.data()) + 8, header_bytes - 8);
  json = json.substr(0, json.find_last_not_of(' ') + 1);
  if (expected != nullptr) {
    if (const std::optional<std::string> rest = expected->WithoutTensors(json)) {
      Result<ParsedImage> image =
          ParseJson(*rest, header_bytes, image_bytes, expected->tensor_bytes());
      // Otherwise the header has more tensors, or an error: the usual way shows which.
      if (image && image->tensors.empty()) {
        image->has_expected = true;
        return image;
      }
    }
  }
  return ParseJson(json, header_bytes, image_bytes, 0);
}

}  // namespace holdfast
