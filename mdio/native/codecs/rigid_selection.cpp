// What a selection of atoms depends on.
#include "rigid_selection.h"

namespace mdio::rigid {
namespace {

constexpr int64_t MIN_ATOMS_PER_STEP = 4;  // below one ancestor in so many atoms, these alone are added up faster

// Adds the units before needed ones in their section, and the units of their second atoms.
void add_dependencies(const Chunk& chunk, const std::vector<int64_t>& unit_of_slot, std::vector<bool>& needed) {
    int64_t section = -1;  // of the last needed unit
    for (size_t u = chunk.units.size(); u-- > 0;) {
        const Unit& unit = chunk.units[u];
        if (!needed[u] && unit.section != section) continue;
        needed[u] = true;
        section = unit.section;
        const Class& c = chunk.classes[unit.of_class];
        if (c.kind != CIRCLE) continue;
        for (int64_t i = 0; i < unit.n; ++i) {
            const int64_t second = chunk.second_slots[size_t(c.begin + unit.begin + i)];
            needed[size_t(unit_of_slot[size_t(second / GROUP)])] = true;
        }
    }
}

}  // namespace

NeededUnits::NeededUnits(const Chunk& chunk, const int64_t* atoms, int64_t n, bool decodes_before)
    : n_atoms(atoms ? 0 : chunk.n_atoms), units(chunk.units.size(), atoms == nullptr) {
    if (!atoms && !decodes_before) return;
    std::vector<int64_t> unit_of_slot(size_t(chunk.n_slots() / GROUP));  // of each GROUP of them
    for (size_t u = 0; u < chunk.units.size(); ++u) {
        const Unit& unit = chunk.units[u];
        const int64_t at = chunk.classes[unit.of_class].begin + unit.begin;
        std::fill_n(unit_of_slot.begin() + at / GROUP, (unit.n + GROUP - 1) / GROUP, int64_t(u));
    }
    if (atoms) {
        for (int64_t i = 0; i < n; ++i) n_atoms = std::max(n_atoms, atoms[i] + 1);
        std::vector<bool> is_needed;
        is_needed.resize(size_t(n_atoms));
        int64_t n_needed = 0;
        for (int64_t i = 0; i < n; ++i)
            for (int64_t at = atoms[i]; at >= 0 && !is_needed[size_t(at)]; at = chunk.parent_of(at)) {
                is_needed[size_t(at)] = true, ++n_needed;
                units[size_t(unit_of_slot[size_t(chunk.slots[size_t(at)] / GROUP)])] = true;
            }
        if (n && n_needed * MIN_ATOMS_PER_STEP < n_atoms) {
            std::vector<int32_t> step_of;  // from 1 on
            step_of.resize(size_t(n_atoms));
            for (size_t at = 0; at < size_t(n_atoms); ++at) {
                if (!is_needed[at]) continue;
                const int64_t parent = chunk.parent_of(int64_t(at));
                steps_.push_back({parent < 0 ? 0 : step_of[size_t(parent)], chunk.slots[at]});
                step_of[at] = int32_t(steps_.size());
            }
            for (int64_t i = 0; i < n; ++i) requested_steps_.push_back(step_of[size_t(atoms[i])]);
            rows_.resize(3 * (steps_.size() + 1));
        }
    }
    if (atoms) add_dependencies(chunk, unit_of_slot, units);
    if (!decodes_before) return;
    before.resize(units.size());
    for (size_t u = 0; u < units.size(); ++u)
        before[u] = units[u] && is_temporal(chunk.classes[chunk.units[u].of_class].kind);
    add_dependencies(chunk, unit_of_slot, before);
}

}  // namespace mdio::rigid
