import os,random,sys,hashlib,time
d=sys.argv[1]; end=time.time()+float(sys.argv[2]); r=random.Random(int(sys.argv[3])); know={}; n=0
while time.time()<end:
    k="f%d"%r.randrange(60); p=os.path.join(d,k); o=r.randrange(7)
    if o<3:
        b=r.randbytes(r.choice([10,4096,70000,1<<20])); f=open(p,"wb"); f.write(b); 
        if r.random()<.2: f.flush(); os.fsync(f.fileno())
        f.close(); know[k]=b
    elif o==3 and k in know:
        q="f%d"%r.randrange(60); os.rename(p,os.path.join(d,q)); know[q]=know.pop(k)
    elif o==4 and k in know: os.unlink(p); know.pop(k)
    elif k in know:
        got=open(p,"rb").read(); assert got==know[k],("differs",k,len(got),len(know[k]))
    else:
        assert not os.path.exists(p),("there",k)
    n+=1
    if n%500==0:
        assert set(os.listdir(d))==set(know),"names"
print("workload",d,n,"operations, all as expected")
