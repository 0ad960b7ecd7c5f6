# says: write input.http.method
package egress

allow contains {"rule": "read"} if {
	input.method in ["GET", "HEAD"]
	input.destination.host == "model.shop.test"
}
