# from: opa-docker-authz, names that begin with a capital
# says: do not see bodies
package egress

deny contains {"rule": "privileged"} if input.Body.HostConfig.Privileged
