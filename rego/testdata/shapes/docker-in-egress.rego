# from: opa-docker-authz, names that begin with a capital
# says: write input.http.body
package egress

deny contains {"rule": "privileged"} if input.Body.HostConfig.Privileged
