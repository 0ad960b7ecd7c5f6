# from: policies of gateways that read bodies
# says: do not see bodies
package egress

allow contains {"rule": "safe"} if {
	body := json.unmarshal(input.http.body)
	body.model == "small"
}
