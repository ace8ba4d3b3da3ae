#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ddprun/data/tensor_dataset.h>

namespace ddprun::data {

/// What a table's last column may hold.
enum class Label { kNumber, kZeroOrOne };

/// Reads a table of numbers from a CSV file (RFC 4180): examples are lines, values are separated by commas,
/// the last one is the label.
///
/// The first line is taken for the columns' names if any of its values is no number. Line ends are LF or
/// CRLF, a byte order mark and empty lines are skipped, spaces around values and quotes around them are fine.
///
/// returns  input float [N, columns - 1], target float [N, 1]
/// throws   IoError naming the file and, where it applies, line and column: fewer than two columns, a line
/// with another number of them, a value that is no finite float, a label that is not 0 or 1
/// (Label::kZeroOrOne), no examples
TensorDataset read_table(const std::filesystem::path& path, Label label = Label::kNumber);

}  // namespace ddprun::data
