// An example: convert once, analyse what was converted (it holds its topology).
include { MDIO_ANALYZE; MDIO_CONVERT } from './main.nf'

workflow {
    given = Channel.of([[id: 'md'], file(params.trajectory), file(params.top)])
    MDIO_CONVERT(given, 'zarr')
    MDIO_ANALYZE(MDIO_CONVERT.out.trajectory.map { meta, tree -> [meta, tree, []] }, params.kernel)
}
