# from: the HTTP API tutorial, in package egress
# says: write one text
package egress

allow contains {"rule": "models"} if input.http.path == ["v1", "models"]
