"""Files of Citi Bike in both formats of the publisher."""

from __future__ import annotations

OLD = (
    '"tripduration","starttime","stoptime","start station id","start station name","start station latitude",'
    '"start station longitude","end station id","end station name","end station latitude","end station longitude",'
    '"bikeid","usertype","birth year","gender"\n'
)
NEW = (
    "ride_id,rideable_type,started_at,ended_at,start_station_name,start_station_id,end_station_name,end_station_id,"
    "start_lat,start_lng,end_lat,end_lng,member_casual\n"
)


def old(start: str, stop: str, seconds: int, end_station: str = "3203") -> str:
    places = f'3202,"Newport PATH",40.75,-74.25,{end_station},"Hamilton, Park",40.5,-74.5'
    return f'{seconds},"{start}","{stop}",{places},42381,"Subscriber",1992,1\n'


def new(ride: str, start: str, stop: str, end: str = "Park,HB102", position: str = "40.5,-74.5") -> str:
    return f"{ride},classic_bike,{start},{stop},PATH,JC066,{end},40.75,-74.25,{position},member\n"
