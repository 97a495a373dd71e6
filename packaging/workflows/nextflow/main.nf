// Runs `mdio convert` and `mdio analyze`; further options come by ext.args, as in nf-core's modules.

process MDIO_CONVERT {
    tag "${meta.id}"
    label 'process_medium'
    conda "${moduleDir}/environment.yml"

    input:
    tuple val(meta), path(trajectory), path(top)
    val suffix

    output:
    tuple val(meta), path("${prefix}.${suffix}"), emit: trajectory
    path 'versions.yml', emit: versions

    script:
    prefix = task.ext.prefix ?: meta.id
    def args = task.ext.args ?: ''
    def topology = top ? "-s '${top}'" : ''
    """
    mdio convert '${trajectory}' '${prefix}.${suffix}' ${topology} -w ${task.cpus} ${args}
    printf '"%s":\\n    mdio: %s\\n' '${task.process}' "\$(mdio --version | sed 's/.* //')" > versions.yml
    """
}

process MDIO_ANALYZE {
    tag "${meta.id}"
    label 'process_medium'
    conda "${moduleDir}/environment.yml"

    input:
    tuple val(meta), path(trajectory), path(top)
    val kernel

    output:
    tuple val(meta), path("${prefix}.csv"), emit: results
    path 'versions.yml', emit: versions

    script:
    prefix = task.ext.prefix ?: "${meta.id}.${kernel}"
    def args = task.ext.args ?: ''
    def topology = top ? "-s '${top}'" : ''
    """
    mdio analyze ${kernel} '${trajectory}' ${topology} -w ${task.cpus} -o '${prefix}.csv' ${args}
    printf '"%s":\\n    mdio: %s\\n' '${task.process}' "\$(mdio --version | sed 's/.* //')" > versions.yml
    """
}
