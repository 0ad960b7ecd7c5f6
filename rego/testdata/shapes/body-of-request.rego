# from: policies of gateways that read bodies
# says: json.unmarshal: invalid argument
package egress

allow contains {"rule": "safe"} if {
	body := json.unmarshal(input.http.body)
	body.model == "small"
}
