#pragma once

#include <filesystem>

#include <ddprun/data/tensor_dataset.h>

namespace ddprun::data {

/// What a table's last column may hold.
enum class Label { kNumber, kZeroOrOne };

/// Reads a table of numbers from a CSV file (RFC 4180): one example per line, the last value is the label.
///
/// A first line whose last value is not a number holds the columns' names. Lines end in LF or CRLF; a byte
/// order mark and empty lines are skipped; values may have spaces or quotes around them.
///
/// returns  input float [N, columns - 1], target float [N, 1]
/// throws   IoError naming the file, line and column: fewer than two columns, lines of different lengths, a
///          value that is not a finite float, a label other than 0 and 1 (Label::kZeroOrOne), no examples
TensorDataset read_table(const std::filesystem::path& path, Label label = Label::kNumber);

}  // namespace ddprun::data
