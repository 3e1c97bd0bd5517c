#pragma once

// Checks of numbers on the command line, stricter than CLI11's: decimal only (CLI11 reads 0x3, and 010 as eight), no
// sign where there can be none (it wraps -1 around), nothing that is not finite.

#include <CLI/CLI.hpp>
#include <cstdint>

namespace memoir::cli {

/// A whole number in [low, high]. For Option::transform: the text is replaced by the number as CLI11 must read it.
CLI::Validator whole_number(std::int64_t low, std::uint64_t high);

/// A finite number in [low, high]. For Option::check.
CLI::Validator number(double low, double high);

/// A finite number in (low, high]. For Option::check.
CLI::Validator number_above(double low, double high);

}  // namespace memoir::cli
