# from: the HTTP API tutorial, a path that is a list with a variable
# v0
# says: write it as allow in package egress
package httpapi.authz

bosses = {"ada": ["ben"], "cleo": ["dan"]}

default allow = false

allow {
	some name
	input.method == "GET"
	input.path = ["shop", "wages", name]
	bosses[input.user][_] == name
}
