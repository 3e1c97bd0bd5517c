#include "memoir/prefix/ledger.h"

namespace memoir::prefix {

void Ledger::add(const Payload& payload, Sort sort) {
  const auto [at, is_new] = storages_.try_emplace(payload.storage(), Storage{payload.size_bytes(), 0, sort});
  if (is_new) total(sort) += at->second.n_bytes;
  ++at->second.n_payloads;
}

void Ledger::remove(const void* storage) {
  const auto at = storages_.find(storage);
  if (at == storages_.end() || --at->second.n_payloads > 0) return;
  total(at->second.sort) -= at->second.n_bytes;
  storages_.erase(at);
}

void Ledger::recount(const Payload& payload) {
  const auto at = storages_.find(payload.storage());
  if (at == storages_.end()) return;
  std::size_t& sum = total(at->second.sort);
  sum -= at->second.n_bytes;
  at->second.n_bytes = payload.size_bytes();
  sum += at->second.n_bytes;
}

std::size_t Ledger::share_bytes(const Payload& payload) const {
  const auto at = storages_.find(payload.storage());
  if (at == storages_.end()) return payload.size_bytes();
  return at->second.n_bytes / static_cast<std::size_t>(at->second.n_payloads);
}

}  // namespace memoir::prefix
