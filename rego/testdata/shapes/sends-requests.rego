# says: reaches outside
package egress

allow contains {"rule": "ask"} if {
	answer := http.send({"method": "get", "url": "https://policy.shop.test/"})
	answer.status_code == 200
}
