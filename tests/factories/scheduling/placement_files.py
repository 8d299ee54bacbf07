"""Files about places as operators have them: one of ours, and two of HAMi's."""

WHOLE = """
pool_label = "example.com/team"
auto_waste_percent = 25
shares_quantum_percent = 5
assumed_uid = 1000

[default]
node_policy = "binpack"
gpu_policy = "numa,spread"
overcommit_percent = 120
weights = { gpu_memory = 3, resources = { "example.com/nic" = 2 } }

[pool.notebooks]
overcommit_percent = 150
weights = { gpu_memory = 0, cpu = 5 }

[pool."a.b"]

[[geometry]]
models = ["A100-SXM4-40GB"]
profiles = ["1g.5gb", "4g.20gb"]

[[allowed]]
models = ["A30"]
profiles = ["1g.6gb", "4g.24gb"]

[[node]]
name = "gpu-a*"
modes = ["fractional", "exclusive"]
"""

GEOMETRIES = """
nvidia:
  resourceCountName: nvidia.com/gpu
  deviceMemoryScaling: 1.8
  knownMigGeometries:
  - models: [ "A30" ]
    allowedGeometries:
      -
        - name: 1g.6gb
          core: 25
          memory: 6144
          count: 4
      -
        - {name: 2g.12gb, core: 50, memory: 12288, count: 2}
  - models: [ "A100-SXM4-80GB", "A100-80GB-PCIe" ]
    allowedGeometries:
      - - {name: 1g.10gb, memory: 10240, count: 7}
      - - {name: 2g.20gb, memory: 20480, count: 3}
        - {name: 1g.10gb, memory: 10240, count: 1}
      - - {name: 7g.79gb, memory: 80896, count: 1}
cambricon:
  resourceCountName: cambricon.com/vmlu
"""

NODES = """{
\t"nodeconfig": [
\t\t{"name": "m5-online02", "operatingmode": "hami-core", "devicememoryscaling": 1.8, "devicesplitcount": 10,
\t\t "migstrategy": "none", "filterdevices": {"uuid": [], "index": []}},
\t\t{"name": "mig-node", "operatingmode": "mig"}
\t]
}"""
