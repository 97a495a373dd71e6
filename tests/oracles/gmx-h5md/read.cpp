// gmx-h5md FILE: what GROMACS' own class makes of an H5MD file, on standard output.
//
// A frame: atoms, step and whether it has positions, velocities, forces and a time (six int64); the
// time (float64); with positions the cell (nine float32); each array there is (float32).

#include "gmxpre.h"

#include <cstdio>

#include "gromacs/fileio/h5md/h5md.h"
#include "gromacs/trajectory/trajectoryframe.h"

int main(int argc, char** argv)
{
    if (argc != 2)
    {
        std::fputs("usage: gmx-h5md FILE\n", stderr);
        return 2;
    }
    try
    {
        gmx::H5md file(argv[1], gmx::H5mdFileMode::Read);
        file.setupFromExistingFile();
        t_trxframe frame = {};
        while (file.readNextFrame(&frame))
        {
            const std::int64_t head[] = { frame.natoms, frame.step, frame.bX,
                                          frame.bV,     frame.bF,   frame.bTime };
            std::fwrite(head, sizeof head, 1, stdout);
            std::fwrite(&frame.time, sizeof frame.time, 1, stdout);
            if (frame.bX)
            {
                std::fwrite(frame.box, sizeof frame.box, 1, stdout);
            }
            const std::pair<bool, const rvec*> arrays[] = { { frame.bX, frame.x },
                                                            { frame.bV, frame.v },
                                                            { frame.bF, frame.f } };
            for (const auto& [has, array] : arrays)
            {
                if (has)
                {
                    std::fwrite(array, sizeof(rvec), frame.natoms, stdout);
                }
            }
        }
    }
    catch (const std::exception& error)
    {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}

// What messages of fatal errors ask for; the rest of GROMACS is not linked.
int gmx_node_num()
{
    return 1;
}
int gmx_node_rank()
{
    return 0;
}
const char* gmx_version()
{
    return "h5md";
}
