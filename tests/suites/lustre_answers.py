"""What ``lfs getstripe`` prints, by version of Lustre, and the striping that it means."""

from mdio.layouts.striping.stripes import Striping

FOLDER_2_1 = "/scratch/run\nstripe_count:   1 stripe_size:    1048576 stripe_offset:  -1 \n"
FOLDER_2_12 = (
    "/scratch/run\nstripe_count:  -1 stripe_size:   4194304 pattern:       raid0 "
    "stripe_offset: -1 pool:          flash\n\n"
)
FOLDER_DEFAULT_2_5 = (
    "/scratch/run\n(Default) stripe_count:   4 stripe_size:    2097152 stripe_offset:  -1\n"
)
FILE_1_8 = """OBDS:
0: lustre-OST0000_UUID ACTIVE
1: lustre-OST0001_UUID ACTIVE
/scratch/run/out.h5md
lmm_magic:          0x0BD10BD0
lmm_object_gr:      0
lmm_object_id:      0x3e0004
lmm_stripe_count:   2
lmm_stripe_size:    1048576
lmm_stripe_pattern: 1
\tobdidx\t\t objid\t\tobjid\t\t group
\t     1\t          1027\t        0x403\t             0
\t     0\t          1028\t        0x404\t             0

"""
FILE_2_5 = """out.h5md
lmm_stripe_count:   4
lmm_stripe_size:    2097152
lmm_pattern:        1
lmm_layout_gen:     0
lmm_stripe_offset:  0
\tobdidx\t\t objid\t\t objid\t\t group
\t     0\t      41127104\t    0x2738cc0\t             0
\t     1\t      41127105\t    0x2738cc1\t             0
"""
FILE_2_15 = """out.h5md
lmm_stripe_count:  8
lmm_stripe_size:   1048576
lmm_pattern:       raid0,overstriped
lmm_layout_gen:    0
lmm_stripe_offset: 10
lmm_pool:          original
\tobdidx\t\t objid\t\t objid\t\t group
\t    10\t      25322723\t    0x18264e3\t   0xf0000040b
"""
FILE_YAML = """lmm_stripe_count:  2
lmm_stripe_size:   4194304
lmm_pattern:       raid0
lmm_layout_gen:    0
lmm_stripe_offset: 3
lmm_objects:
      - l_ost_idx: 3
        l_fid:     0x100030000:0x2:0x0
      - l_ost_idx: 0
        l_fid:     0x100000000:0x2:0x0
"""
PROGRESSIVE = """out.h5md
  lcm_layout_gen:    3
  lcm_mirror_count:  1
  lcm_entry_count:   2
    lcme_id:             1
    lcme_mirror_id:      0
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   268435456
      lmm_stripe_count:  1
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: 1
      lmm_objects:
      - 0: { l_ost_idx: 1, l_fid: [0x100010000:0x56:0x0] }

    lcme_id:             2
    lcme_mirror_id:      0
    lcme_flags:          0
    lcme_extent.e_start: 268435456
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  8
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: -1
      lmm_pool:          disk

"""
PROGRESSIVE_YAML = """  lcm_layout_gen:    2
  lcm_mirror_count:  1
  lcm_entry_count:   2
  component0:
    lcme_id:             1
    lcme_mirror_id:      0
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   1048576
    sub_layout:
      lmm_stripe_count:  0
      lmm_stripe_size:   1048576
      lmm_pattern:       mdt
      lmm_layout_gen:    0
      lmm_stripe_offset: 0

  component1:
    lcme_id:             2
    lcme_mirror_id:      0
    lcme_flags:          0
    lcme_extent.e_start: 1048576
    lcme_extent.e_end:   EOF
    sub_layout:
      lmm_stripe_count:  -1
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: -1

"""
PROGRESSIVE_FOLDER = """/scratch/run
  lcm_layout_gen:    0
  lcm_mirror_count:  1
  lcm_entry_count:   2
    lcme_id:             N/A
    lcme_mirror_id:      N/A
    lcme_flags:          0
    lcme_extent.e_start: 0
    lcme_extent.e_end:   67108864
      stripe_count:  1       stripe_size:   1048576   pattern:   raid0   stripe_offset: -1

    lcme_id:             N/A
    lcme_mirror_id:      N/A
    lcme_flags:          0
    lcme_extent.e_start: 67108864
    lcme_extent.e_end:   EOF
      stripe_count:  4       stripe_size:   2097152   pattern:   raid0   stripe_offset: -1

"""
MIRRORED = """out.h5md
  lcm_layout_gen:    2
  lcm_mirror_count:  2
  lcm_entry_count:   2
    lcme_id:             65537
    lcme_mirror_id:      1
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  2
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_pool:          flash

    lcme_id:             131074
    lcme_mirror_id:      2
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  6
      lmm_stripe_size:   8388608
      lmm_pattern:       raid0
      lmm_pool:          archive

"""

MIB = 1 << 20
SAMPLES = {
    "folder 2.1": (FOLDER_2_1, Striping(MIB, 1, "-S 1048576 -c 1")),
    "folder 2.12": (FOLDER_2_12, Striping(4 * MIB, -1, "-S 4194304 -c -1 -p flash", "flash")),
    "folder 2.5": (FOLDER_DEFAULT_2_5, Striping(2 * MIB, 4, "-S 2097152 -c 4")),
    "folder with files": (FOLDER_2_1 + FILE_2_5, Striping(MIB, 1, "-S 1048576 -c 1")),
    "file 1.8": (FILE_1_8, Striping(MIB, 2, "-S 1048576 -c 2")),
    "file 2.5": (FILE_2_5, Striping(2 * MIB, 4, "-S 2097152 -c 4")),
    "file 2.15": (FILE_2_15, Striping(MIB, 8, "-S 1048576 -C 8 -p original", "original")),
    "file yaml": (FILE_YAML, Striping(4 * MIB, 2, "-S 4194304 -c 2")),
    "progressive": (
        PROGRESSIVE,
        Striping(4 * MIB, 8, "-E 268435456 -S 4194304 -c 1 -E -1 -S 4194304 -c 8 -p disk", "disk"),
    ),
    "data on MDT": (
        PROGRESSIVE_YAML,
        Striping(4 * MIB, -1, "-E 1048576 -L mdt -E -1 -S 4194304 -c -1"),
    ),
    "progressive folder": (
        PROGRESSIVE_FOLDER,
        Striping(2 * MIB, 4, "-E 67108864 -S 1048576 -c 1 -E -1 -S 2097152 -c 4"),
    ),
    "mirrored": (MIRRORED, Striping(4 * MIB, 2, "-E -1 -S 4194304 -c 2 -p flash", "flash")),
}
