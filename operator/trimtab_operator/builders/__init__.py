"""Builders: a resolved job in, manifests (plain dictionaries) out. Pure: no client, no clock, no file.

resolve.py    a job's spec and the platform's settings -> Resolved (or every problem of the spec)
groups.py     Resolved and live replica counts -> pod groups and pod plans
pod.py        a pod plan -> Pod; container, env, volumes, security, scheduling, accelerator and code
              each build one part of it, merge.py lays the templates over it
children.py   everything beside pods: service, config_map, secret, network_policy,
              disruption_budget, claim, device_claims
"""
